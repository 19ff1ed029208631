package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	maxEdits  = 256
	maxBy     = 128 // bytes
	maxReason = 512 // bytes
	// maxAwait bounds one wait, so that a caller that went away is noticed.
	maxAwait = 10 * time.Second
	// ownTimeout is how long the asked node may take to see its own change.
	ownTimeout = 500 * time.Millisecond
)

// StartValue is what the configuration of this node gives a key, and the place
// that set it; a place "default" and a key that no configuration has are alike.
type StartValue func(key string) (value, place string)

// settingsService is the SettingsService.
type settingsService struct{ a *Admin }

// ListSettings lists settings as they hold on this node.
func (s settingsService) ListSettings(_ context.Context, r *adminv1.ListSettingsRequest) (*adminv1.ListSettingsResponse, error) {
	live := s.a.Settings
	state, snap := live.State(), live.Current()
	out := &adminv1.ListSettingsResponse{NodeId: string(s.a.Node), Revision: state.Applied()}
	out.RefusedRevision, out.RefusedReason = state.Refused()
	keys := r.Keys
	if len(keys) == 0 {
		keys = live.Registry().Keys()
	}
	for _, key := range keys {
		d, err := live.Registry().Find(key)
		if err != nil {
			return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, "admin.ListSettings", "%v", err)
		}
		out.Settings = append(out.Settings, s.message(d, state, snap))
	}
	return out, nil
}

func (s settingsService) message(d *settings.Declaration, state settings.State, snap *settings.Snapshot) *adminv1.Setting {
	m := &adminv1.Setting{
		Key: d.Key, Type: string(d.Kind), Unit: d.Unit, Default: d.Default, Range: d.Range, Shrink: d.Shrink, Sentence: d.Sentence,
		StartValue: d.Default, StartSource: "default",
	}
	if s.a.StartValue != nil {
		if value, place := s.a.StartValue(d.Key); value != "" && place != "default" {
			if c, err := d.Canonical(value); err == nil {
				value = c
			}
			m.StartValue, m.StartSource = value, place
		}
	}
	m.Value, m.Source = m.StartValue, m.StartSource
	if e, ok := snap.Get(d.Key); ok {
		m.Value, m.Source = e.Text, "setting ("+e.Scope.String()+")"
	}
	for _, o := range state.Overrides(d) {
		m.Overrides = append(m.Overrides, &adminv1.SettingOverride{Scope: o.Scope.String(), Value: o.Text})
	}
	return m
}

// SetSettings changes values, all or none.
func (s settingsService) SetSettings(ctx context.Context, r *adminv1.SetSettingsRequest) (*adminv1.SetSettingsResponse, error) {
	if len(r.Edits) == 0 || len(r.Edits) > maxEdits {
		return nil, badRequest("1 to %d edits are wanted, not %d", maxEdits, len(r.Edits))
	}
	change, err := s.change(r.By, r.Reason)
	if err != nil {
		return nil, err
	}
	var edits []settings.Edit
	for _, e := range r.Edits {
		edits = append(edits, settings.Edit{Key: e.Key, Scope: scopeOf(e.Scope), Value: e.Value})
	}
	plan, err := s.a.Settings.State().Plan(edits, change)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return s.carryOut(ctx, plan, r.IfBaseRevision, r.DryRun, change)
}

// RollbackSettings brings an older document back.
func (s settingsService) RollbackSettings(ctx context.Context, r *adminv1.RollbackSettingsRequest) (*adminv1.SetSettingsResponse, error) {
	change, err := s.change(r.By, r.Reason)
	if err != nil {
		return nil, err
	}
	past, err := s.history(ctx, r.Section)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(past, func(p settings.Past) bool { return p.Number == int(r.Number) })
	if i < 0 {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, "admin.RollbackSettings", "section %s has no change %d that is kept", r.Section, r.Number)
	}
	plan, err := s.a.Settings.State().Rollback(r.Section, past[i], change)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return s.carryOut(ctx, plan, r.IfBaseRevision, r.DryRun, change)
}

func scopeOf(m *adminv1.SettingScope) settings.Scope {
	switch k := m.GetScope().(type) {
	case *adminv1.SettingScope_Zone:
		return settings.Scope{Kind: settings.Zone, Name: k.Zone}
	case *adminv1.SettingScope_Role:
		return settings.Scope{Kind: settings.Role, Name: k.Role}
	case *adminv1.SettingScope_Node:
		return settings.Scope{Kind: settings.Node, Name: k.Node}
	}
	return settings.Scope{}
}

func (s settingsService) change(by, reason string) (settings.Change, error) {
	if len(by) > maxBy || len(reason) > maxReason {
		return settings.Change{}, badRequest("by has at most %d and reason at most %d bytes", maxBy, maxReason)
	}
	return settings.Change{At: s.a.Now().UTC().Truncate(time.Millisecond), By: by, Reason: reason}, nil
}

// carryOut writes a plan, if it is still about what the caller saw.
func (s settingsService) carryOut(ctx context.Context, p settings.Plan, base *int64, dry bool, c settings.Change) (*adminv1.SetSettingsResponse, error) {
	out := &adminv1.SetSettingsResponse{BaseRevision: p.Base}
	for _, d := range p.Diff {
		out.Differences = append(out.Differences, differenceMessage(d))
	}
	if base != nil && *base != p.Base {
		out.Conflict = true
		return out, nil
	}
	if dry || len(p.Writes) == 0 {
		return out, nil
	}
	docs, err := s.documents()
	if err != nil {
		return nil, err
	}
	rev, err := docs.Put(ctx, p.Writes)
	if errors.Is(err, settings.ErrConflict) {
		out.Conflict = true
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	out.Revision = rev
	s.a.Log.Info("settings changed by an operator", zap.Int64("rev", rev), zap.String("by", c.By), zap.String("reason", c.Reason), zap.Any("changes", p.Diff))
	wait, cancel := context.WithTimeout(ctx, ownTimeout) // so that who reads from this node next sees the change
	defer cancel()
	_ = s.a.Settings.Await(wait, rev) // late, but written
	return out, nil
}

func differenceMessage(d settings.Difference) *adminv1.SettingDifference {
	return &adminv1.SettingDifference{Key: d.Key, Scope: d.Scope, OldValue: d.Old, NewValue: d.New}
}

func (s settingsService) documents() (settings.Documents, error) {
	if d := s.a.Settings.Documents(); d != nil {
		return d, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "admin", "the control plane has not started")
}

func (s settingsService) history(ctx context.Context, section string) ([]settings.Past, error) {
	if !slices.Contains(s.sections(), section) {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, "admin", "there is no section %.64q; sections are %s", section, strings.Join(s.sections(), ", "))
	}
	docs, err := s.documents()
	if err != nil {
		return nil, err
	}
	return docs.History(ctx, section)
}

// sections lists the sections that have declared settings.
func (s settingsService) sections() []string {
	var out []string
	for _, d := range s.a.Settings.Registry().All() {
		out = append(out, d.Section())
	}
	return slices.Compact(out) // in order already
}

// ListSettingsHistory lists the changes that are kept.
func (s settingsService) ListSettingsHistory(ctx context.Context, r *adminv1.ListSettingsHistoryRequest) (*adminv1.ListSettingsHistoryResponse, error) {
	sections := s.sections()
	if r.Section != "" {
		sections = []string{r.Section}
	}
	out := &adminv1.ListSettingsHistoryResponse{}
	for _, section := range sections {
		past, err := s.history(ctx, section)
		if err != nil {
			return nil, err
		}
		for i, p := range past {
			out.Changes = append(out.Changes, changeMessage(p, past[i+1:]))
		}
	}
	slices.SortStableFunc(out.Changes, func(a, b *adminv1.SettingsChange) int { return int(max(-1, min(1, b.AtMs-a.AtMs))) })
	return out, nil
}

// changeMessage shows a change against the one before it.
func changeMessage(p settings.Past, older []settings.Past) *adminv1.SettingsChange {
	c := p.Document.Change
	m := &adminv1.SettingsChange{Section: p.Section, Number: int32(p.Number), By: c.By, Reason: c.Reason, Rollback: int32(c.Rollback)}
	if !c.At.IsZero() {
		m.AtMs = c.At.UnixMilli()
	}
	var before settings.Document
	switch {
	case len(older) > 0:
		before = older[0].Document
	case p.Number > 1:
		return m // what was before is not kept
	}
	for _, d := range settings.Diff(before, p.Document) {
		m.Differences = append(m.Differences, differenceMessage(d))
	}
	return m
}

// ListSettingsStatus lists what the registered nodes have in force.
func (s settingsService) ListSettingsStatus(ctx context.Context, _ *adminv1.ListSettingsStatusRequest) (*adminv1.ListSettingsStatusResponse, error) {
	docs, err := s.documents()
	if err != nil {
		return nil, err
	}
	reports, err := docs.Statuses(ctx)
	if err != nil {
		return nil, err
	}
	byNode := map[string]settings.Status{}
	for _, r := range reports {
		byNode[r.Node] = r
	}
	out := &adminv1.ListSettingsStatusResponse{Revision: s.a.Settings.State().Applied()}
	for _, n := range s.a.Control.View().Nodes {
		m := &adminv1.SettingsStatus{NodeId: string(n.ID)}
		if r, ok := byNode[string(n.ID)]; ok {
			m.AppliedRevision, m.RefusedRevision, m.RefusedReason, m.AtMs = r.Applied, r.Refused, r.Reason, r.At.UnixMilli()
		}
		out.Nodes = append(out.Nodes, m)
	}
	return out, nil
}

// AwaitSettings waits for something newer than what the caller knows.
func (s settingsService) AwaitSettings(ctx context.Context, r *adminv1.AwaitSettingsRequest) (*adminv1.AwaitSettingsResponse, error) {
	limit := min(time.Duration(max(r.WaitMs, 0))*time.Millisecond, maxAwait)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		state, changed := s.a.Settings.Watch()
		out := &adminv1.AwaitSettingsResponse{Revision: state.Applied()}
		out.RefusedRevision, out.RefusedReason = state.Refused()
		if out.Revision != r.SinceRevision || out.RefusedRevision != r.SinceRefusedRevision {
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return out, nil
		}
	}
}
