package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// settingsStore keeps documents, their history and the nodes' reports. Safe
// for concurrent use.
type settingsStore struct {
	etcd                      *clientv3.Client
	config, history, statuses string // prefixes
}

var _ settings.Documents = (*settingsStore)(nil)

// Put writes documents and their history in one transaction; see
// settings.Documents.
func (s *settingsStore) Put(ctx context.Context, writes []settings.Write) (int64, error) {
	var when []clientv3.Cmp
	var then []clientv3.Op
	for _, w := range writes {
		last, err := s.newest(ctx, w.Section)
		if err != nil {
			return 0, err
		}
		w.Doc.Change.Number = last + 1
		key, past, raw := s.config+w.Section, s.past(w.Section, last+1), string(w.Doc.Encode())
		when = append(when,
			clientv3.Compare(clientv3.ModRevision(key), "=", w.Mod),
			clientv3.Compare(clientv3.CreateRevision(past), "=", 0))
		then = append(then, clientv3.OpPut(key, raw), clientv3.OpPut(past, raw))
		if old := last + 1 - settings.HistoryLimit; old > 0 {
			then = append(then, clientv3.OpDelete(s.past(w.Section, 0), clientv3.WithRange(s.past(w.Section, old+1))))
		}
	}
	tctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := s.etcd.Txn(tctx).If(when...).Then(then...).Commit()
	if err != nil {
		return s.readBack(ctx, then, err)
	}
	if !resp.Succeeded {
		return 0, settings.ErrConflict
	}
	return resp.Header.Revision, nil
}

// readBack finds out whether a transaction of unknown outcome was made: its
// first entry of the history tells, also if the caller has gone.
func (s *settingsStore) readBack(ctx context.Context, then []clientv3.Op, cause error) (int64, error) {
	want := then[1] // the history entry, which nobody else writes
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, string(want.KeyBytes()))
	if err != nil {
		return 0, away("whether the settings were written is not known; look before trying again", cause)
	}
	if len(resp.Kvs) == 1 && string(resp.Kvs[0].Value) == string(want.ValueBytes()) {
		return resp.Kvs[0].ModRevision, nil
	}
	return 0, away("the settings are not written so far; look before trying again", cause)
}

// past is the key of a former document; number 0 sorts before all.
func (s *settingsStore) past(section string, number int) string {
	return fmt.Sprintf("%s%s/%010d", s.history, section, number)
}

// newest is the number of a section's newest document; 0 = there is none.
func (s *settingsStore) newest(ctx context.Context, section string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.history+section+"/", append(clientv3.WithLastKey(), clientv3.WithKeysOnly())...)
	if err != nil {
		return 0, away("the history of the settings cannot be read", err)
	}
	if len(resp.Kvs) == 0 {
		return 0, nil
	}
	return number(string(resp.Kvs[0].Key)), nil
}

// number is the last part of the key of a former document.
func number(key string) int {
	n := 0
	_, _ = fmt.Sscanf(key[strings.LastIndexByte(key, '/')+1:], "%d", &n) // 0 = not ours
	return n
}

// History lists what is kept of a section, newest first.
func (s *settingsStore) History(ctx context.Context, section string) ([]settings.Past, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.history+section+"/", clientv3.WithPrefix(),
		clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend), clientv3.WithLimit(settings.HistoryLimit))
	if err != nil {
		return nil, away("the history of the settings cannot be read", err)
	}
	var out []settings.Past
	for _, kv := range resp.Kvs {
		p := settings.Past{Section: section, Number: number(string(kv.Key))}
		if err := json.Unmarshal(kv.Value, &p.Document); err != nil {
			continue // not written by us
		}
		out = append(out, p)
	}
	return out, nil
}

// Statuses lists what the nodes report, by node.
func (s *settingsStore) Statuses(ctx context.Context) ([]settings.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := s.etcd.Get(ctx, s.statuses, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
	if err != nil {
		return nil, away("the reports of the nodes cannot be read", err)
	}
	var out []settings.Status
	for _, kv := range resp.Kvs {
		var st settings.Status
		if json.Unmarshal(kv.Value, &st) == nil && st.Node != "" {
			out = append(out, st)
		}
	}
	return out, nil
}

// away says that etcd did not do what was asked.
func away(what string, err error) error {
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: "etcd.Settings", Msg: what, Err: err}
}
