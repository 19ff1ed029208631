package etcd

import (
	"bytes"
	"maps"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
)

// record is one key as it was read.
type record struct {
	mod  int64 // revision of its last change
	raw  []byte
	node control.Node
	ok   bool // raw could be read
}

// replica is a copy of all records at one revision. It is never changed; the
// methods make new ones.
type replica struct {
	rev     int64
	cluster uint64 // id of the etcd cluster
	records map[string]record
}

// replicaOf is the copy that a full read gives.
func replicaOf(rev int64, cluster uint64, kvs []*mvccpb.KeyValue) replica {
	r := replica{rev: rev, cluster: cluster, records: make(map[string]record, len(kvs))}
	for _, kv := range kvs {
		r.records[string(kv.Key)] = read(kv)
	}
	return r
}

func read(kv *mvccpb.KeyValue) record {
	n, err := decode(kv)
	return record{mod: kv.ModRevision, raw: kv.Value, node: n, ok: err == nil && n.ID != ""}
}

// apply takes in the events of one watch answer, which holds whole revisions.
// Events that the copy has already are left out.
func (r replica) apply(events []*clientv3.Event) replica {
	next := replica{rev: r.rev, cluster: r.cluster, records: maps.Clone(r.records)}
	for _, ev := range events {
		if ev.Kv.ModRevision <= r.rev {
			continue
		}
		next.rev = max(next.rev, ev.Kv.ModRevision)
		if ev.Type == clientv3.EventTypeDelete {
			delete(next.records, string(ev.Kv.Key))
			continue
		}
		next.records[string(ev.Kv.Key)] = read(ev.Kv)
	}
	return next
}

// reached moves the revision up without a change of records.
func (r replica) reached(rev int64) replica {
	r.rev = max(r.rev, rev)
	return r
}

// differences counts the keys that differ between two copies.
func (r replica) differences(o replica) int {
	n := 0
	for k, a := range r.records {
		if b, ok := o.records[k]; !ok || a.mod != b.mod || !bytes.Equal(a.raw, b.raw) {
			n++
		}
	}
	for k := range o.records {
		if _, ok := r.records[k]; !ok {
			n++
		}
	}
	return n
}

// nodes are the records that can be read, by id.
func (r replica) nodes() []control.Node {
	out := make([]control.Node, 0, len(r.records))
	for _, rec := range r.records {
		if rec.ok {
			out = append(out, rec.node)
		}
	}
	return byID(out)
}

// verdict says what to do with a full read.
type verdict int

const (
	takeIt   verdict = iota
	ignoreIt         // it is from a member that lags behind what we have
	rebuild          // etcd has another or an older history
)

// stubborn is how many reads in a row must be behind before etcd is believed to
// have gone back.
const stubborn = 3

// judge compares a read at (rev, cluster) with the copy. behind is how many
// reads in a row were behind before it.
func (r replica) judge(rev int64, cluster uint64, behind int) verdict {
	switch {
	case r.cluster == 0:
		return takeIt // nothing is known yet
	case cluster != r.cluster:
		return rebuild
	case rev >= r.rev:
		return takeIt
	case behind+1 >= stubborn:
		return rebuild
	}
	return ignoreIt
}
