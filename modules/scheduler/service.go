package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// maxLetters is the most dead letters of one answer.
const maxLetters = 1000

const (
	serviceLimit = 10 * time.Second // of a call
	testLimit    = 8 * time.Second  // of a test, whatever deadline the receiver has
)

func serviceTimeout(connect.Spec) time.Duration { return serviceLimit }

// service is the WebhookService.
type service struct{ s *Scheduler }

// ListReceivers tells of those of the configuration and those of the store.
func (v service) ListReceivers(ctx context.Context, _ *adminv1.ListReceiversRequest) (*adminv1.ListReceiversResponse, error) {
	st, err := v.s.Store()
	if err != nil {
		return nil, err
	}
	state, err := st.OutboxState(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := st.Receivers(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := st.PushCounts(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]*adminv1.WebhookReceiver{}
	for _, r := range v.s.receivers {
		all[r.Name] = &adminv1.WebhookReceiver{Name: r.Name, Url: withoutQuery(r.URL), Events: r.Events, Cursor: -1}
	}
	for _, row := range rows {
		r := all[row.Name]
		if r == nil {
			r = &adminv1.WebhookReceiver{Name: row.Name}
			all[row.Name] = r
		}
		if v.s.provider != nil && strings.HasPrefix(row.Name, "offline/") {
			r.Url = withoutQuery(v.s.Push.URL)
		}
		r.Cursor, r.Behind, r.Open, r.Dead = row.Cursor, state.Last-row.Cursor, int64(len(row.Open)), int64(row.Dead)
		r.SavedMs = row.Saved.UnixMilli()
	}
	out := &adminv1.ListReceiversResponse{
		Newest: state.Last, Oldest: state.First, On: state.On, PushesDue: int64(counts[store.PushDue]), PushesSent: int64(counts[store.PushSent]),
		PushesWithdraw: int64(counts[store.PushWithdraw]), PushesGivenUp: int64(counts[store.PushGivenUp]),
	}
	for _, r := range all {
		out.Receivers = append(out.Receivers, r)
	}
	slices.SortFunc(out.Receivers, func(a, b *adminv1.WebhookReceiver) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// withoutQuery is an address without what may be secret in it.
func withoutQuery(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	u.RawQuery, u.User = "", nil
	return u.String()
}

// TestReceiver sends an event that is none.
func (v service) TestReceiver(ctx context.Context, req *adminv1.TestReceiverRequest) (*adminv1.TestReceiverResponse, error) {
	for _, r := range v.s.receivers {
		if r.Name != req.Name {
			continue
		}
		began := time.Now()
		id := fmt.Sprintf("test_%d", began.UnixNano())
		b, err := json.Marshal(map[string]any{"type": "test", "id": id, "cursor": "0", "time": began.UTC()})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, testLimit)
		defer cancel()
		res := r.sender.Send(ctx, webhook.Message{ID: id, Body: b})
		return &adminv1.TestReceiverResponse{
			Taken: res.Outcome == webhook.Taken, Status: int32(res.Status), Reason: res.Reason, TookMs: time.Since(began).Milliseconds(),
		}, nil
	}
	return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, "scheduler.TestReceiver", "there is no receiver %.64q in the configuration of this node", req.Name)
}

// ReplayReceiver puts a receiver back.
func (v service) ReplayReceiver(ctx context.Context, req *adminv1.ReplayReceiverRequest) (*adminv1.ReplayReceiverResponse, error) {
	const op = "scheduler.ReplayReceiver"
	asked := 0
	for _, one := range []bool{req.ByCursor, req.SinceMs != 0, req.Dead} {
		if one {
			asked++
		}
	}
	if asked != 1 || req.After < 0 || strings.Contains(req.Name, "/") {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "a receiver and exactly one of a cursor, a time and dead letters are wanted")
	}
	st, err := v.s.Store()
	if err != nil {
		return nil, err
	}
	after := req.After
	if !req.Dead {
		state, err := st.OutboxState(ctx)
		if err != nil {
			return nil, err
		}
		switch {
		case req.SinceMs != 0:
			if after, err = since(ctx, st, state, time.UnixMilli(req.SinceMs)); err != nil {
				return nil, err
			}
		case after == 0:
			after = state.First - 1
		case after < state.First-1 || after > state.Last:
			return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "events are kept from cursor %d to %d", state.First, state.Last)
		}
	}
	n, err := st.Rewind(ctx, req.Name, after, req.Dead)
	if err != nil {
		return nil, missing(op, req.Name, err)
	}
	v.s.Log.Info("a receiver is told once more", zap.String("receiver", req.Name), zap.Int64("after", after), zap.Bool("dead", req.Dead), zap.Int("letters", n))
	if req.Dead {
		after = 0
	}
	return &adminv1.ReplayReceiverResponse{After: after, Dead: int64(n)}, nil
}

// since is the position before the first event of a time: positions rise with
// time, but for moments.
func since(ctx context.Context, st Messages, state store.OutboxState, at time.Time) (int64, error) {
	low, high := state.First-1, state.Last // the answer is in [low, high]
	for low < high {
		mid := low + (high-low)/2
		e, err := st.Events(ctx, mid, 1)
		if err != nil {
			return 0, err
		}
		if len(e) == 0 || !e[0].At.Before(at) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low, nil
}

// ListDeadLetters lists what was given up.
func (v service) ListDeadLetters(ctx context.Context, req *adminv1.ListDeadLettersRequest) (*adminv1.ListDeadLettersResponse, error) {
	st, err := v.s.Store()
	if err != nil {
		return nil, err
	}
	letters, err := st.DeadLetters(ctx, req.Name, req.After, min(or(int(req.Limit), 100), maxLetters))
	if err != nil {
		return nil, err
	}
	if len(letters) == 0 {
		if err := v.known(ctx, st, req.Name); err != nil {
			return nil, err
		}
	}
	positions := make([]int64, len(letters))
	for i, d := range letters {
		positions[i] = d.Position
	}
	events, err := st.EventsAt(ctx, positions)
	if err != nil {
		return nil, err
	}
	byPosition := map[int64]store.Event{}
	for _, e := range events {
		byPosition[e.Position] = e
	}
	out := &adminv1.ListDeadLettersResponse{}
	for _, d := range letters {
		e := byPosition[d.Position]
		out.Letters = append(out.Letters, &adminv1.DeadLetter{
			Cursor: d.Position, Type: outbox.Type(e.Kind), ConversationId: string(e.Conversation), Seq: int64(e.Seq), UserId: string(e.User),
			AtMs: e.At.UnixMilli(), DeadMs: d.At.UnixMilli(), Tries: int32(d.Tries), Reason: d.Reason, Again: d.Again,
		})
	}
	return out, nil
}

// known tells whether there is a receiver, in the configuration or in the store.
// Errors: not_found.
func (v service) known(ctx context.Context, st Messages, name string) error {
	for _, r := range v.s.receivers {
		if r.Name == name {
			return nil
		}
	}
	rows, err := st.Receivers(ctx)
	if err != nil || slices.ContainsFunc(rows, func(r store.Receiver) bool { return r.Name == name }) {
		return err
	}
	return missing("scheduler.ListDeadLetters", name, store.ErrNotFound)
}

// RemoveReceiver forgets a receiver.
func (v service) RemoveReceiver(ctx context.Context, req *adminv1.RemoveReceiverRequest) (*adminv1.RemoveReceiverResponse, error) {
	st, err := v.s.Store()
	if err != nil {
		return nil, err
	}
	if err := st.RemoveReceiver(ctx, req.Name); err != nil {
		return nil, missing("scheduler.RemoveReceiver", req.Name, err)
	}
	v.s.Log.Info("a receiver is forgotten", zap.String("receiver", req.Name))
	return &adminv1.RemoveReceiverResponse{}, nil
}

func missing(op, name string, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "the message store knows no receiver %.64q", name)
	}
	return err
}
