package admin

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// shelf keeps documents in memory and feeds them back.
type shelf struct {
	live *settings.Live

	mu       sync.Mutex
	rev      int64
	versions map[string]int64
	mods     map[string]int64
	past     map[string][]settings.Past // newest first
	away     bool
	reports  []settings.Status
}

func (s *shelf) Put(_ context.Context, writes []settings.Write) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return 0, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
	}
	for _, w := range writes {
		if w.Mod != s.mods[w.Section] {
			return 0, settings.ErrConflict
		}
	}
	s.rev++
	c := settings.Changed{Revision: s.rev}
	for _, w := range writes {
		s.versions[w.Section]++
		s.mods[w.Section] = s.rev
		w.Doc.Change.Number = len(s.past[w.Section]) + 1
		s.past[w.Section] = append([]settings.Past{{Section: w.Section, Number: w.Doc.Change.Number, Document: w.Doc}}, s.past[w.Section]...)
		c.Puts = append(c.Puts, settings.Record{Section: w.Section, Version: s.versions[w.Section], Mod: s.rev, Raw: w.Doc.Encode()})
	}
	s.live.Feed(c)
	return s.rev, nil
}

func (s *shelf) History(_ context.Context, section string) ([]settings.Past, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.past[section], nil
}

func (s *shelf) Statuses(context.Context) ([]settings.Status, error) { return s.reports, nil }

func newSettingsService(t *testing.T) (settingsService, *shelf) {
	t.Helper()
	reg, err := settings.NewRegistry([]string{"gateway"}, settings.Schema{Keys: []settings.Declared{
		settings.Duration("beat.interval", 25*time.Second, time.Second, time.Hour, "Interval.", settings.Shrink(2)),
		settings.Int("count.n", 5, 0, 100, "Count."),
	}})
	if err != nil {
		t.Fatal(err)
	}
	live := settings.NewLive(reg, settings.Identity{Node: "a", Zone: "eu"}, zap.NewNop())
	live.Feed(settings.Read{Revision: 1})
	sh := &shelf{live: live, rev: 1, versions: map[string]int64{}, mods: map[string]int64{}, past: map[string][]settings.Past{}}
	live.SetDocuments(sh)
	ctl := &control.Handle{}
	ctl.SetView(&control.View{Nodes: []control.Node{{ID: "a"}, {ID: "b"}}})
	a := &Admin{Deps: Deps{
		Node: "a", Settings: live, Log: zap.NewNop(), Now: time.Now,
		Control: ctl,
		StartValue: func(key string) (string, string) {
			if key == "beat.interval" {
				return "20000ms", "imd.yaml:7"
			}
			return "", "default"
		},
	}}
	return settingsService{a}, sh
}

func edit(key, value string) *adminv1.SetSettingsRequest {
	return &adminv1.SetSettingsRequest{By: "ann", Reason: "why", Edits: []*adminv1.SettingEdit{{Key: key, Value: value}}}
}

// The effective value and its source are shown, before and after a change.
func TestListSettings(t *testing.T) {
	s, _ := newSettingsService(t)
	show := func(key string) *adminv1.Setting {
		res, err := s.ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{key}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Settings[0]
	}
	if m := show("beat.interval"); m.Value != "20s" || m.Source != "imd.yaml:7" || m.StartValue != "20s" || m.Default != "25s" {
		t.Errorf("%v", m)
	}
	if m := show("count.n"); m.Value != "5" || m.Source != "default" {
		t.Errorf("%v", m)
	}
	req := edit("beat.interval", "40s")
	req.Edits[0].Scope = &adminv1.SettingScope{Scope: &adminv1.SettingScope_Zone{Zone: "eu"}}
	if _, err := s.SetSettings(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if m := show("beat.interval"); m.Value != "40s" || m.Source != "setting (zone eu)" || m.StartSource != "imd.yaml:7" || len(m.Overrides) != 1 {
		t.Errorf("%v", m)
	}
	if _, err := s.ListSettings(t.Context(), &adminv1.ListSettingsRequest{Keys: []string{"count.m"}}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_FOUND {
		t.Errorf("an unknown key: %v", err)
	}
}

func TestSetSettings(t *testing.T) {
	s, sh := newSettingsService(t)
	dry := edit("count.n", "7")
	dry.DryRun = true
	res, err := s.SetSettings(t.Context(), dry)
	if err != nil || res.Revision != 0 || res.BaseRevision != 0 || len(res.Differences) != 1 || sh.rev != 1 {
		t.Fatalf("dry run: %v, %v", res, err)
	}
	base := res.BaseRevision
	first := edit("count.n", "7")
	first.IfBaseRevision = &base
	if res, err = s.SetSettings(t.Context(), first); err != nil || res.Revision != 2 || res.Conflict {
		t.Fatalf("set: %v, %v", res, err)
	}
	again := edit("count.n", "8")
	again.IfBaseRevision = &base
	if res, err = s.SetSettings(t.Context(), again); err != nil || !res.Conflict || res.Revision != 0 || sh.rev != 2 {
		t.Errorf("on an old base: %v, %v", res, err)
	}
	if res, err = s.SetSettings(t.Context(), edit("count.n", "7")); err != nil || res.Revision != 0 || len(res.Differences) != 0 {
		t.Errorf("nothing to change: %v, %v", res, err)
	}
	for name, r := range map[string]*adminv1.SetSettingsRequest{
		"no edits": {}, "out of range": edit("count.n", "101"), "unknown": edit("count.m", "1"), "too small a step": edit("beat.interval", "5s"),
		"a long reason": {Reason: string(make([]byte, maxReason+1)), Edits: edit("count.n", "9").Edits},
	} {
		if _, err := s.SetSettings(t.Context(), r); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Errorf("%s: %v", name, err)
		}
	}
	sh.away = true
	if _, err := s.SetSettings(t.Context(), edit("count.n", "9")); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("away: %v", err)
	}
}

func TestSettingsHistoryAndRollback(t *testing.T) {
	s, _ := newSettingsService(t)
	for _, v := range []string{"7", "8", "9"} {
		if _, err := s.SetSettings(t.Context(), edit("count.n", v)); err != nil {
			t.Fatal(err)
		}
	}
	res, err := s.ListSettingsHistory(t.Context(), &adminv1.ListSettingsHistoryRequest{})
	if err != nil || len(res.Changes) != 3 {
		t.Fatalf("%v, %v", res, err)
	}
	newest := res.Changes[0]
	if newest.Number != 3 || newest.By != "ann" || newest.Reason != "why" || newest.Differences[0].OldValue != "8" || newest.Differences[0].NewValue != "9" {
		t.Errorf("%v", newest)
	}
	back, err := s.RollbackSettings(t.Context(), &adminv1.RollbackSettingsRequest{Section: "count", Number: 1})
	if err != nil || back.Revision == 0 || back.Differences[0].NewValue != "7" {
		t.Fatalf("%v, %v", back, err)
	}
	if res, err = s.ListSettingsHistory(t.Context(), &adminv1.ListSettingsHistoryRequest{Section: "count"}); err != nil || res.Changes[0].Rollback != 1 {
		t.Errorf("%v, %v", res, err)
	}
	if _, err = s.RollbackSettings(t.Context(), &adminv1.RollbackSettingsRequest{Section: "count", Number: 9}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_FOUND {
		t.Errorf("a change that is not kept: %v", err)
	}
	if _, err = s.ListSettingsHistory(t.Context(), &adminv1.ListSettingsHistoryRequest{Section: "cuont"}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_FOUND {
		t.Errorf("no such section: %v", err)
	}
}

// Every registered node is listed, also one that has not reported.
func TestSettingsStatus(t *testing.T) {
	s, sh := newSettingsService(t)
	sh.reports = []settings.Status{{Node: "a", Applied: 4, At: time.Now()}, {Node: "gone", Applied: 3}}
	res, err := s.ListSettingsStatus(t.Context(), &adminv1.ListSettingsStatusRequest{})
	if err != nil || len(res.Nodes) != 2 || res.Nodes[0].AppliedRevision != 4 || res.Nodes[1].NodeId != "b" || res.Nodes[1].AtMs != 0 {
		t.Errorf("%v, %v", res, err)
	}
}

func TestAwaitSettings(t *testing.T) {
	s, _ := newSettingsService(t)
	res, err := s.AwaitSettings(t.Context(), &adminv1.AwaitSettingsRequest{WaitMs: 1})
	if err != nil || res.Revision != 0 {
		t.Errorf("nothing new: %v, %v", res, err)
	}
	got := make(chan *adminv1.AwaitSettingsResponse, 1)
	go func() {
		res, _ := s.AwaitSettings(context.Background(), &adminv1.AwaitSettingsRequest{WaitMs: 10_000})
		got <- res
	}()
	if _, err := s.SetSettings(t.Context(), edit("count.n", "7")); err != nil {
		t.Fatal(err)
	}
	if res := <-got; res.Revision != 2 {
		t.Errorf("%v", res)
	}
}

// A document that etcd holds is read by people too.
func TestDocumentsAreReadable(t *testing.T) {
	s, sh := newSettingsService(t)
	if _, err := s.SetSettings(t.Context(), edit("count.n", "7")); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		All    map[string]string
		Change struct{ By, Reason string }
	}
	if err := json.Unmarshal(sh.past["count"][0].Document.Encode(), &doc); err != nil || doc.All["count.n"] != "7" || doc.Change.By != "ann" {
		t.Errorf("%+v, %v", doc, err)
	}
}
