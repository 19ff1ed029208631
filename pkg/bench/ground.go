package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// ReadLog reads one page of a conversation's log as the system, which sees
// everything: the entries after a seq, at most limit.
type ReadLog func(ctx context.Context, conv string, after int64, limit int) (*clientv1.Page, error)

// entryName is the kind of an entry as histories name it.
func entryName(k clientv1.EntryKind) string {
	name, ok := clientv1.EntryKind_name[int32(k)]
	if !ok {
		return fmt.Sprintf("kind_%d", k)
	}
	return strings.ToLower(strings.TrimPrefix(name, "ENTRY_KIND_"))
}

// WriteGround reads the logs of conversations and writes them into a history as
// the ground truth: db.final, and members.final with who may see what of them.
// pairs names the two users of direct conversations; of groups, spans follow
// from the entries that add and remove members.
func WriteGround(ctx context.Context, rec *history.Recorder, read ReadLog, convs []string, pairs map[string][2]string) error {
	for _, conv := range convs {
		if err := writeLog(ctx, rec, read, conv, pairs[conv]); err != nil {
			return fmt.Errorf("read the log of %s: %w", conv, err)
		}
	}
	return nil
}

func writeLog(ctx context.Context, rec *history.Recorder, read ReadLog, conv string, pair [2]string) error {
	spans := spans{open: map[string]int64{}}
	for after := int64(0); ; {
		p, err := read(ctx, conv, after, protocol.MaxHistoryLimit)
		if err != nil {
			return err
		}
		for _, e := range p.GetEntries() {
			r := history.Record{Kind: history.Row, Conv: conv, Seq: e.Seq, Prev: e.PrevSeq, MID: e.MessageId, CMID: e.ClientMessageId,
				Sender: e.Sender, Entry: entryName(e.Kind), T: 0}
			if e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
				if r.Hash = hashOf(e.Kind, e.TargetSeq, e.Content); e.Content == nil {
					r.Hash, r.Name = "", history.Gone
				}
			}
			rec.Add("db.final", r)
			spans.take(e)
		}
		if p.GetEnd() || p == nil || p.CompleteTo <= after {
			break
		}
		after = p.CompleteTo
	}
	if strings.HasPrefix(conv, "d_") {
		for _, user := range pair {
			if user != "" {
				spans.closed = append(spans.closed, span{user, 0, 0})
			}
		}
	}
	for _, s := range spans.all() {
		rec.Add("members.final", history.Record{Kind: history.Span, Conv: conv, User: s.user, Seq: s.after, To: s.to})
	}
	return nil
}

// span is what a user may see of a log: (after, to], or to the end if to is 0.
type span struct {
	user      string
	after, to int64
}

// spans follows who may see what, entry by entry.
type spans struct {
	open   map[string]int64
	closed []span
}

func (s *spans) take(e *clientv1.Entry) {
	mc := e.GetMemberChange()
	for _, user := range mc.GetUserIds() {
		after, in := s.open[user]
		switch mc.Action {
		case clientv1.MemberAction_MEMBER_ACTION_ADDED:
			if !in {
				s.open[user] = mc.Start
			}
		case clientv1.MemberAction_MEMBER_ACTION_REMOVED, clientv1.MemberAction_MEMBER_ACTION_LEFT:
			if in {
				delete(s.open, user)
				s.closed = append(s.closed, span{user, after, e.Seq})
			}
		}
	}
}

// all is every span, by user and place.
func (s *spans) all() []span {
	for user, after := range s.open {
		s.closed = append(s.closed, span{user, after, 0})
	}
	slices.SortFunc(s.closed, func(a, b span) int {
		if c := strings.Compare(a.user, b.user); c != 0 {
			return c
		}
		return int(a.after - b.after)
	})
	return s.closed
}
