package transfer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// sum is a sum of rows that does not depend on their order: that of the first
// halves of the SHA-256 of each.
type sum struct{ hi, lo uint64 }

// hashHalf is how much of a body's hash every driver keeps, in bytes.
const hashHalf = 16

// parseSum reads what String wrote; "" is the sum of nothing.
func parseSum(text string) (sum, error) {
	if text == "" {
		return sum{}, nil
	}
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != 16 {
		return sum{}, fmt.Errorf("bad sum %q", text)
	}
	return sum{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, nil
}

// String is the sum as 32 digits.
func (s sum) String() string { return fmt.Sprintf("%016x%016x", s.hi, s.lo) }

// row adds one row.
func (s *sum) row(b []byte) {
	h := sha256.Sum256(b)
	s.hi += binary.BigEndian.Uint64(h[:])
	s.lo += binary.BigEndian.Uint64(h[8:])
}

// add adds the rows of a batch.
func (s *sum) add(b *store.Batch) {
	var f fields
	for i := range b.Users {
		r := &b.Users[i]
		s.row(f.begin().text(string(r.ID)).time(r.Created).flag(r.Disabled).b)
	}
	for i := range b.Blocks {
		r := &b.Blocks[i]
		s.row(f.begin().text(string(r.User)).text(string(r.Blocked)).b)
	}
	for i := range b.Mutes {
		r := &b.Mutes[i]
		s.row(f.begin().text(string(r.User)).text(string(r.Conversation)).time(r.Until).b)
	}
	for i := range b.ReceiverNames {
		s.row(f.begin().text(b.ReceiverNames[i].Name).b)
	}
	for i := range b.LastSeen {
		r := &b.LastSeen[i]
		s.row(f.begin().text(string(r.User)).time(r.At).b)
	}
	s.later(&f, b)
	for i := range b.Revocations {
		r := &b.Revocations[i]
		s.row(f.begin().text(string(r.User)).text(string(r.Login)).time(r.IssuedBefore).num(int64(r.Reason)).time(r.Until).b)
	}
	for i := range b.Keys {
		r := &b.Keys[i]
		f.begin().text(r.ID).text(r.Name).bytes(r.SecretHash[:]).time(r.Created).time(r.Revoked).num(int64(len(r.Scopes)))
		for _, scope := range r.Scopes {
			f.text(scope)
		}
		s.row(f.b)
	}
	for i := range b.Conversations {
		r := &b.Conversations[i]
		s.row(f.begin().num(r.Num).text(string(r.ID)).num(int64(r.Kind)).text(r.Name).flag(r.Closed).flag(r.OpenHistory).
			text(string(r.UserA)).text(string(r.UserB)).num(int64(r.Head)).num(int64(r.Kept)).num(int64(r.Members)).num(r.MemberVersion).b)
	}
	for i := range b.Creations {
		r := &b.Creations[i]
		s.row(f.begin().text(string(r.Actor)).text(string(r.RequestID)).num(r.Conv).b)
	}
	for i := range b.Members {
		s.member(&f, &b.Members[i])
	}
	for i := range b.Entries {
		s.entry(&f, &b.Entries[i])
	}
	for i := range b.WorkerMarks {
		r := &b.WorkerMarks[i]
		s.row(f.begin().num(int64(r.Worker)).num(r.Mark.UnixMicro()).b)
	}
	for i := range b.FenceTokens {
		r := &b.FenceTokens[i]
		s.row(f.begin().text(r.Name).num(r.Token).text(r.Holder).text(r.Cluster).num(r.Revision).time(r.Claimed).b)
	}
}

// later adds the rows of what is still to be told or sent.
func (s *sum) later(f *fields, b *store.Batch) {
	for i := range b.Online {
		s.row(f.begin().text(string(b.Online[i].User)).b)
	}
	for i := range b.PushRows {
		r := &b.PushRows[i]
		s.row(f.begin().text(string(r.User)).text(string(r.Conversation)).num(int64(r.Seq)).num(int64(r.MessageID)).text(string(r.Sender)).
			num(int64(r.State)).time(r.At).time(r.Due).num(int64(r.Tries)).flag(r.Told).b)
	}
	for i := range b.Later {
		r := &b.Later[i]
		s.row(f.begin().num(r.ID).text(string(r.RequestID)).text(string(r.ClientMessageID)).text(string(r.Conversation)).text(string(r.Peer)).
			text(string(r.Sender)).bytes(r.Content).bytes(r.BodyHash[:]).time(r.Due).time(r.Turn).time(r.Created).num(int64(r.State)).num(int64(r.Tries)).
			num(int64(r.Reason)).num(int64(r.MessageID)).num(int64(r.Seq)).time(r.Ended).b)
	}
	for i := range b.Posted {
		r := &b.Posted[i]
		s.row(f.begin().num(r.Seq).text(string(r.RequestID)).text(r.Text).time(r.Created).time(r.Expires).time(r.Withdrawn).num(r.Withdrawal).b)
	}
	for i := range b.PostedUpTo {
		s.row(f.begin().num(b.PostedUpTo[i].Seq).num(b.PostedUpTo[i].Version).b)
	}
}

func (s *sum) member(f *fields, r *store.MemberRow) {
	f.begin().text(string(r.User)).text(string(r.Conversation)).num(r.Conv).num(int64(r.Role)).num(int64(r.Start)).num(int64(r.End)).
		num(int64(r.Cleared)).num(int64(r.Delivered)).num(int64(r.Read)).text(r.LeftName).num(int64(len(r.Earlier)))
	for _, e := range r.Earlier {
		f.num(int64(e.Start)).num(int64(e.End))
	}
	s.row(f.b)
}

func (s *sum) entry(f *fields, r *store.EntryRow) {
	s.row(f.begin().num(r.Conv).num(int64(r.Seq)).num(int64(r.PrevSeq)).num(int64(r.Kind)).num(int64(r.MessageID)).
		text(string(r.ClientMessageID)).text(string(r.Sender)).time(r.ServerTime).num(int64(r.TargetSeq)).num(int64(r.ChangedSeq)).
		flag(r.Countable).bytes(r.Content).bytes(r.Change).bytes(r.BodyHash[:min(len(r.BodyHash), hashHalf)]).b)
}

// fields are the values of one row, so that no two different rows look alike.
type fields struct{ b []byte }

func (f *fields) begin() *fields {
	f.b = f.b[:0]
	return f
}

func (f *fields) num(n int64) *fields {
	f.b = binary.BigEndian.AppendUint64(f.b, uint64(n))
	return f
}

func (f *fields) text(s string) *fields {
	f.num(int64(len(s)))
	f.b = append(f.b, s...)
	return f
}

// bytes takes none and empty for the same: not every driver tells them apart.
func (f *fields) bytes(v []byte) *fields {
	f.num(int64(len(v)))
	f.b = append(f.b, v...)
	return f
}

// time counts milliseconds; the zero time is none.
func (f *fields) time(t time.Time) *fields {
	if t.IsZero() {
		return f.num(0)
	}
	return f.num(t.UnixMilli())
}

func (f *fields) flag(v bool) *fields {
	if v {
		return f.num(1)
	}
	return f.num(0)
}
