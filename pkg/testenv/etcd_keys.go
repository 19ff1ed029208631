package testenv

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// EtcdKey is a key as etcd has it.
type EtcdKey struct {
	Key     []byte `json:"key"`
	Value   []byte `json:"value"`
	Create  int64  `json:"create_revision,string"`
	Mod     int64  `json:"mod_revision,string"`
	Version int64  `json:"version,string"`
	Lease   int64  `json:"lease,string"` // 0 = none
}

// etcdHeader is in every answer.
type etcdHeader struct {
	Header struct {
		Cluster  string `json:"cluster_id"`
		Member   string `json:"member_id"`
		Revision int64  `json:"revision,string"`
	} `json:"header"`
}

// call makes one call of the member's JSON interface.
func (m *EtcdMember) call(path string, in, out any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL+"/v3/"+path, bytes.NewReader(b))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d: %s", path, res.StatusCode, text)
	}
	return json.Unmarshal(text, out)
}

// do makes a call of the first member that answers it, for as long as a cluster
// may take to elect a leader. A call may be made twice.
func (c *Etcd) do(path string, in, out any) {
	c.t.Helper()
	var err error
	for l := NewLimit(ReadyIn); !l.Over(); time.Sleep(20 * time.Millisecond) {
		for _, m := range c.Members {
			if err = m.call(path, in, out); err == nil {
				return
			}
		}
	}
	c.t.Fatal(err)
}

// Put sets keys to values, given by turns, all in one revision, which it
// returns.
func (c *Etcd) Put(pairs ...string) int64 {
	c.t.Helper()
	type put struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	type op struct {
		Put put `json:"request_put"`
	}
	var ops []op
	for i := 0; i < len(pairs); i += 2 {
		ops = append(ops, op{put{[]byte(pairs[i]), []byte(pairs[i+1])}})
	}
	var out etcdHeader
	c.do("kv/txn", map[string]any{"success": ops}, &out)
	return out.Header.Revision
}

// Delete removes a key.
func (c *Etcd) Delete(key string) {
	c.t.Helper()
	c.do("kv/deleterange", map[string]any{"key": []byte(key)}, &etcdHeader{})
}

// Keys lists the keys below a prefix, by key.
func (c *Etcd) Keys(prefix string) []EtcdKey {
	c.t.Helper()
	end := prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
	var out struct {
		Kvs []EtcdKey `json:"kvs"`
	}
	c.do("kv/range", map[string]any{"key": []byte(prefix), "range_end": []byte(end)}, &out)
	return out.Kvs
}

// Revision is the newest one.
func (c *Etcd) Revision() int64 {
	c.t.Helper()
	var out etcdHeader
	c.do("kv/range", map[string]any{"key": []byte("/")}, &out)
	return out.Header.Revision
}

// ID is that of the cluster.
func (c *Etcd) ID() string {
	c.t.Helper()
	var out etcdHeader
	c.do("kv/range", map[string]any{"key": []byte("/")}, &out)
	return out.Header.Cluster
}

// Compact forgets all revisions before the newest one.
func (c *Etcd) Compact() {
	c.t.Helper()
	rev := c.Revision()
	c.until("kv/compaction", map[string]any{"revision": fmt.Sprint(rev), "physical": true}, "has been compacted")
}

// Revoke ends a lease. It may have ended already.
func (c *Etcd) Revoke(lease int64) {
	c.t.Helper()
	c.until("lease/revoke", map[string]any{"ID": fmt.Sprint(lease)}, "lease not found")
}

// until is do for a call that may find its work done, which etcd says so.
func (c *Etcd) until(path string, in any, done string) {
	c.t.Helper()
	var err error
	for l := NewLimit(ReadyIn); !l.Over(); time.Sleep(20 * time.Millisecond) {
		for _, m := range c.Members {
			if err = m.call(path, in, &etcdHeader{}); err == nil || strings.Contains(err.Error(), done) {
				return
			}
		}
	}
	c.t.Fatal(err)
}

// Leader finds the member that leads.
func (c *Etcd) Leader() *EtcdMember {
	c.t.Helper()
	for l := NewLimit(ReadyIn); !l.Over(); time.Sleep(20 * time.Millisecond) {
		for _, m := range c.Members {
			var s struct {
				etcdHeader
				Leader string `json:"leader"`
			}
			if m.call("maintenance/status", struct{}{}, &s) == nil && s.Leader != "" && s.Leader == s.Header.Member {
				return m
			}
		}
	}
	c.t.Fatal("no member leads")
	return nil
}

// MoveLeader lets another member lead and returns it.
func (c *Etcd) MoveLeader() *EtcdMember {
	c.t.Helper()
	for l := NewLimit(ReadyIn); !l.Over(); time.Sleep(20 * time.Millisecond) {
		old := c.Leader()
		for _, m := range c.Members {
			var s etcdHeader
			if m == old || m.call("maintenance/status", struct{}{}, &s) != nil {
				continue
			}
			if old.call("maintenance/transfer-leadership", map[string]any{"targetID": s.Header.Member}, &etcdHeader{}) == nil {
				return m
			}
		}
	}
	c.t.Fatal("the leadership cannot be moved")
	return nil
}
