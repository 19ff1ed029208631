// Package synthetic makes up the contents of a message store of any size, as a
// source that a copier takes them from: for measuring stores that are large.
package synthetic

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Plan says what the store shall hold.
type Plan struct {
	Users         int       `json:"users"`
	Conversations int       `json:"conversations"` // one group and direct ones
	Entries       int64     `json:"entries"`       // in all
	Big           int64     `json:"big"`           // of these in the group
	Members       int       `json:"members"`       // of the group: the first users
	Busy          int       `json:"busy"`          // direct conversations of the first user
	Size          int       `json:"size"`          // bytes of text in each message
	Until         time.Time `json:"until"`         // about the server time of the last entry
}

// Check says what is wrong with the plan; nil if it can be made.
func (p Plan) Check() error {
	rest := p.Conversations - 1
	others := int64(rest - p.Busy)
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(p.Users < 4 || p.Users > 50_000_000, "users: %d is not within 4 and 50000000", p.Users)
	bad(rest < 1, "conversations: %d is not at least 2", p.Conversations)
	bad(p.Members < 2 || p.Members > p.Users || p.Members > store.MaxMembers, "members: %d is not within 2 and the number of users", p.Members)
	bad(p.Busy < 0 || p.Busy > rest || p.Busy >= p.Users, "busy: %d is not below the number of conversations and of users", p.Busy)
	bad(others > int64(p.Users-1)*int64((p.Users-2)/2), "conversations: so many need more users")
	bad(p.Big < 1 || p.Entries-p.Big < int64(rest), "entries: at least one for each conversation are needed, besides those of the group")
	bad(p.Size < 16 || p.Size > 16_000, "size: %d is not within 16 and 16000", p.Size)
	return errors.Join(errs...)
}

// Group is the conversation with Big entries.
const Group = im.ConversationID("g_1")

// User is the n-th user, from 0 on.
func User(n int) im.UserID { return im.UserID(fmt.Sprintf("load-%08d", n)) }

// source is a store.Source over a plan. The n-th row of a table is computed.
type source struct {
	Plan
	per, extra int64 // entries of each direct conversation, and how many have one more
	began      int64 // ms, server time of the first entry
}

// perMilli is how many entries share one millisecond.
const perMilli = 16

// New is a source for the plan, which must be good. The same plan always gives
// the same rows.
func New(p Plan) store.Source {
	rest := int64(p.Conversations - 1)
	return &source{Plan: p, per: (p.Entries - p.Big) / rest, extra: (p.Entries - p.Big) % rest, began: p.Until.UnixMilli() - p.Entries/perMilli}
}

// Origin is store.Source's. The data_epoch follows from the plan.
func (s *source) Origin() store.Origin {
	sum := sha256.Sum256(fmt.Appendf(nil, "%+v %d", s.Plan, s.Until.UnixMilli()))
	name := hex.EncodeToString(sum[:8])
	return store.Origin{DataEpoch: name, State: name, Newest: s.at(s.Entries - 1)}
}

// Retire is store.Source's. There is nothing to retire.
func (s *source) Retire(context.Context) (string, error) { return "", nil }

// Close is store.Source's.
func (s *source) Close() error { return nil }

// Export is store.Exporter's. Places are numbers of rows.
func (s *source) Export(ctx context.Context, t store.Table, after string, limit int) (*store.Batch, error) {
	from := int64(0)
	if after != "" {
		var err error
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, fmt.Errorf("bad place %q", after)
		}
	}
	b := &store.Batch{}
	var rows int64
	var add func(n int64) error
	switch t {
	case store.Users:
		rows, add = int64(s.Users), func(n int64) error {
			b.Users = append(b.Users, store.User{ID: User(int(n)), Created: time.UnixMilli(s.began)})
			return nil
		}
	case store.Conversations:
		rows, add = int64(s.Conversations), func(n int64) error {
			b.Conversations = append(b.Conversations, s.conversation(n))
			return nil
		}
	case store.Members:
		rows, add = int64(s.Members)+2*int64(s.Conversations-1), func(n int64) error {
			b.Members = append(b.Members, s.member(n))
			return nil
		}
	case store.Entries:
		rows, add = s.Entries, func(n int64) error {
			e, err := s.entry(n)
			b.Entries = append(b.Entries, e)
			return err
		}
	case store.PostedUpTo:
		rows, add = 1, func(int64) error {
			b.PostedUpTo = append(b.PostedUpTo, store.AnnouncedUpTo{}) // there were none
			return nil
		}
	}
	to := min(rows, from+int64(limit))
	for n := from; n < to; n++ {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	b.After, b.End = strconv.FormatInt(to, 10), to == rows
	return b, ctx.Err()
}

// pair are the users of direct conversation n, from 1 on; a is the lower.
func (s *source) pair(n int64) (a, b im.UserID) {
	if n <= int64(s.Busy) {
		return User(0), User(int(n))
	}
	ring := int64(s.Users - 1) // all but the first user sit in a ring; each round goes one seat further
	n -= int64(s.Busy) + 1
	x := n % ring
	y := (x + 1 + n/ring) % ring
	return User(int(1 + min(x, y))), User(int(1 + max(x, y)))
}

// count is how many entries conversation n has; 0 is the group.
func (s *source) count(n int64) int64 {
	switch {
	case n == 0:
		return s.Big
	case n <= s.extra:
		return s.per + 1
	}
	return s.per
}

func (s *source) conversation(n int64) store.ConversationRow {
	c := store.ConversationRow{Num: n + 1, Head: im.Seq(s.count(n)), Members: 2, MemberVersion: 1}
	if n == 0 {
		c.ID, c.Kind, c.Name, c.OpenHistory, c.Members = Group, clientv1.ConversationKind_CONVERSATION_KIND_GROUP, "load", true, s.Plan.Members
		return c
	}
	c.Kind = clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
	c.UserA, c.UserB = s.pair(n)
	c.ID = im.ConversationID(protocol.DirectID(string(c.UserA), string(c.UserB)))
	return c
}

// member is the n-th member row; all have read all but the last 3 entries.
func (s *source) member(n int64) store.MemberRow {
	conv := int64(0)
	user := User(int(n))
	if n >= int64(s.Plan.Members) {
		n -= int64(s.Plan.Members)
		conv = 1 + n/2
		a, b := s.pair(conv)
		if user = a; n%2 == 1 {
			user = b
		}
	}
	c := s.conversation(conv)
	m := store.MemberRow{User: user, Conversation: c.ID, Conv: c.Num, Role: clientv1.Role_ROLE_MEMBER, Delivered: c.Head, Read: max(c.Head-3, 0)}
	if conv == 0 && user == User(0) {
		m.Role = clientv1.Role_ROLE_OWNER
	}
	return m
}

// at is the server time of entry n.
func (s *source) at(n int64) time.Time { return time.UnixMilli(s.began + n/perMilli) }

// idEpoch is where the times in message ids begin.
var idEpoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

// place is the conversation of entry n, and its seq there.
func (s *source) place(n int64) (conv, seq int64) {
	if n < s.Big {
		return 0, n + 1
	}
	n -= s.Big
	long := s.extra * (s.per + 1)
	if n < long {
		return 1 + n/(s.per+1), 1 + n%(s.per+1)
	}
	n -= long
	return 1 + s.extra + n/s.per, 1 + n%s.per
}

func (s *source) entry(n int64) (store.EntryRow, error) {
	conv, seq := s.place(n)
	sender := User(int(seq % int64(s.Plan.Members)))
	if conv > 0 {
		a, b := s.pair(conv)
		if sender = a; seq%2 == 0 {
			sender = b
		}
	}
	text := fmt.Sprintf("%d of %d ", seq, conv)
	text += strings.Repeat("x", max(s.Size-len(text), 0))
	content := &clientv1.Content{Value: &clientv1.Content_Text{Text: text[:s.Size]}}
	raw, err := proto.Marshal(content)
	if err != nil {
		return store.EntryRow{}, err
	}
	hash := protocol.BodyHash(clientv1.EntryKind_ENTRY_KIND_MESSAGE, 0, content)
	at := s.at(n)
	return store.EntryRow{Conv: conv + 1, BodyHash: hash[:], Entry: im.Entry{
		Seq: im.Seq(seq), PrevSeq: im.Seq(seq - 1), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Sender: sender, Countable: true,
		MessageID: im.MessageID((at.UnixMilli()-idEpoch)<<22 | n%perMilli), ClientMessageID: uuid(n), ServerTime: at, Content: raw,
	}}, nil
}

// uuid is a version 4 UUID that follows from n.
func uuid(n int64) im.ClientMessageID {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(n)))
	b := sum[:16]
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	t := hex.EncodeToString(b)
	return im.ClientMessageID(t[:8] + "-" + t[8:12] + "-" + t[12:16] + "-" + t[16:20] + "-" + t[20:])
}
