package bench

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// The frames that come by the thousand are written and read by hand, in the
// binary encoding: send and ack, send_ack and deliver. All others, and all
// frames in JSON, take the generated code. Field numbers are those of
// imd/client/v1/client.proto.

// Kinds of frames, as field numbers of ClientFrame and ServerFrame.
const (
	kindSend    = 3
	kindAck     = 4
	kindSendAck = 3
	kindDeliver = 4
)

// Wire types.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

func tag(field, wire int) byte { return byte(field<<3 | wire) }

func varintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func bytesLen(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + varintLen(uint64(n)) + n
}

func intLen(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + varintLen(v)
}

func appendText(b []byte, field int, s string) []byte {
	if s == "" {
		return b
	}
	b = binary.AppendUvarint(append(b, tag(field, wireBytes)), uint64(len(s)))
	return append(b, s...)
}

func appendInt(b []byte, field int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(append(b, tag(field, wireVarint)), v)
}

// sendOut is a send of a text.
type sendOut struct {
	conv, user string // one of both
	cmid       [36]byte
	text       []byte
	resend     bool
	runStart   bool
}

// append appends the frame with its length to an envelope.
func (s *sendOut) append(b []byte, id uint32) []byte {
	to, field := s.conv, 1
	if to == "" {
		to, field = s.user, 2
	}
	// The empty text is present all the same: it is a member of a oneof.
	content := 1 + varintLen(uint64(len(s.text))) + len(s.text)
	body := 1 + varintLen(uint64(len(to))) + len(to) + 2 + len(s.cmid) + 1 + varintLen(uint64(content)) + content
	if s.resend {
		body += 2
	}
	if s.runStart {
		body += 2
	}
	b = binary.AppendUvarint(b, uint64(intLen(uint64(id))+1+varintLen(uint64(body))+body))
	b = appendInt(b, 1, uint64(id))
	b = binary.AppendUvarint(append(b, tag(kindSend, wireBytes)), uint64(body))
	b = binary.AppendUvarint(append(b, tag(field, wireBytes)), uint64(len(to)))
	b = append(b, to...)
	b = append(append(b, tag(3, wireBytes), byte(len(s.cmid))), s.cmid[:]...)
	if s.resend {
		b = append(b, tag(4, wireVarint), 1)
	}
	b = binary.AppendUvarint(append(b, tag(6, wireBytes)), uint64(content))
	b = binary.AppendUvarint(append(b, tag(2, wireBytes)), uint64(len(s.text)))
	b = append(b, s.text...)
	if s.runStart {
		b = append(b, tag(8, wireVarint), 1)
	}
	return b
}

// message is the same for the generated code.
func (s *sendOut) message(id uint32) *clientv1.ClientFrame {
	m := &clientv1.Send{ClientMessageId: string(s.cmid[:]), Resend: s.resend, RunStart: s.runStart,
		Content: &clientv1.Content{Value: &clientv1.Content_Text{Text: string(s.text)}}}
	if s.conv != "" {
		m.To = &clientv1.Send_ConversationId{ConversationId: s.conv}
	} else {
		m.To = &clientv1.Send_ToUser{ToUser: s.user}
	}
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: m}}
}

// ackRange says that this device holds (after, seq] of a conversation.
type ackRange struct {
	conv       string
	after, seq int64
}

func (r *ackRange) size() int {
	return bytesLen(len(r.conv)) + intLen(uint64(r.after)) + intLen(uint64(r.seq))
}

// appendAck appends an ack frame with its length to an envelope.
func appendAck(b []byte, ranges []ackRange) []byte {
	body := 0
	for i := range ranges {
		n := ranges[i].size()
		body += 1 + varintLen(uint64(n)) + n
	}
	b = binary.AppendUvarint(b, uint64(1+varintLen(uint64(body))+body))
	b = binary.AppendUvarint(append(b, tag(kindAck, wireBytes)), uint64(body))
	for i := range ranges {
		r := &ranges[i]
		b = binary.AppendUvarint(append(b, tag(1, wireBytes)), uint64(r.size()))
		b = appendText(b, 1, r.conv)
		b = appendInt(b, 2, uint64(r.after))
		b = appendInt(b, 3, uint64(r.seq))
	}
	return b
}

func ackMessage(ranges []ackRange) *clientv1.ClientFrame {
	a := &clientv1.DeliveryAck{}
	for _, r := range ranges {
		a.Ranges = append(a.Ranges, &clientv1.AckRange{ConversationId: r.conv, AfterSeq: r.after, Seq: r.seq})
	}
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: a}}
}

// field is one field of a message in binary form.
type field struct {
	num  int
	v    uint64 // of a number
	data []byte // of what has a length
}

// cut takes the next field off b; n is its length, 0 if b is broken.
func cut(b []byte) (f field, n int) {
	key, n := uvarint(b)
	if n == 0 || key>>3 == 0 || key>>3 > 1<<29-1 {
		return f, 0
	}
	f.num = int(key >> 3)
	switch key & 7 {
	case wireVarint:
		v, k := uvarint(b[n:])
		if k == 0 {
			return f, 0
		}
		f.v, n = v, n+k
	case wireBytes:
		size, k := uvarint(b[n:])
		if k == 0 || size > uint64(len(b)-n-k) {
			return f, 0
		}
		n += k
		f.data = b[n : n+int(size)]
		n += int(size)
	case wire64:
		if len(b) < n+8 {
			return f, 0
		}
		n += 8
	case wire32:
		if len(b) < n+4 {
			return f, 0
		}
		n += 4
	default:
		return f, 0
	}
	return f, n
}

// uvarint is binary.Uvarint with 0 for whatever is wrong.
func uvarint(b []byte) (uint64, int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	v, n := binary.Uvarint(b)
	return v, max(n, 0)
}

// cutFrame takes the next frame off an envelope; n is the length with the
// frame's, 0 if the envelope is broken.
func cutFrame(env []byte) (frame []byte, n int) {
	size, k := uvarint(env)
	if k == 0 || size > uint64(len(env)-k) {
		return nil, 0
	}
	return env[k : k+int(size)], k + int(size)
}

// head finds out what a server frame is. Only of send_ack and deliver, and only
// if nothing else is in the frame, is body given; else it is nil.
func head(frame []byte) (id uint32, kind int, body []byte) {
	for len(frame) > 0 {
		f, n := cut(frame)
		switch {
		case n == 0:
			return 0, 0, nil
		case f.num == 1:
			id = uint32(f.v)
		case kind != 0 || f.num != kindSendAck && f.num != kindDeliver:
			return id, 0, nil
		default:
			kind, body = f.num, f.data
		}
		frame = frame[n:]
	}
	return id, kind, body
}

// ackIn is a send_ack. Its slices share memory with what it was read from.
type ackIn struct {
	cmid, conv []byte
	status     clientv1.Ack
	mid, seq   int64
	prev, at   int64
	duplicate  bool
	reason     []byte // of the error
	retryMs    uint32
}

// parse reads a send_ack; false if it is broken.
func (a *ackIn) parse(b []byte) bool {
	*a = ackIn{}
	for len(b) > 0 {
		f, n := cut(b)
		if n == 0 {
			return false
		}
		b = b[n:]
		switch f.num {
		case 1:
			a.cmid = f.data
		case 2:
			a.status = clientv1.Ack(f.v)
		case 3:
			a.conv = f.data
		case 4:
			a.mid = int64(f.v)
		case 5:
			a.seq = int64(f.v)
		case 6:
			a.prev = int64(f.v)
		case 7:
			a.at = int64(f.v)
		case 8:
			a.duplicate = f.v != 0
		case 9:
			if !a.parseError(f.data) {
				return false
			}
		}
	}
	return true
}

func (a *ackIn) parseError(b []byte) bool {
	for len(b) > 0 {
		f, n := cut(b)
		if n == 0 {
			return false
		}
		b = b[n:]
		switch f.num {
		case 2:
			a.reason = f.data
		case 4:
			a.retryMs = uint32(f.v)
		}
	}
	return true
}

// from takes over a decoded send_ack.
func (a *ackIn) from(m *clientv1.SendAck) {
	*a = ackIn{cmid: []byte(m.ClientMessageId), conv: []byte(m.ConversationId), status: m.Status, mid: m.MessageId, seq: m.Seq, prev: m.PrevSeq,
		at: m.ServerTimeMs, duplicate: m.Duplicate, reason: []byte(m.GetError().GetReason()), retryMs: m.GetError().GetRetryAfterMs()}
}

// entryIn is an entry, as far as a device of a load test looks at it. Its
// slices share memory with what it was read from.
type entryIn struct {
	seq, prev    int64
	kind         clientv1.EntryKind
	mid          int64
	cmid, sender []byte
	text         []byte          // of the content
	plain        bool            // the content is a text and nothing else
	raw          []byte          // the entry in binary form; nil = full is set
	full         *clientv1.Entry // if it came through the generated code
}

// parse reads an entry; false if it is broken.
func (e *entryIn) parse(b []byte) bool {
	*e = entryIn{raw: b}
	for len(b) > 0 {
		f, n := cut(b)
		if n == 0 {
			return false
		}
		b = b[n:]
		switch f.num {
		case 1:
			e.seq = int64(f.v)
		case 2:
			e.prev = int64(f.v)
		case 3:
			e.kind = clientv1.EntryKind(f.v)
		case 4:
			e.mid = int64(f.v)
		case 5:
			e.cmid = f.data
		case 6:
			e.sender = f.data
		case 8:
			e.parseContent(f.data)
		}
	}
	return true
}

// parseContent sees whether the content is nothing but a text.
func (e *entryIn) parseContent(b []byte) {
	e.plain = len(b) > 0
	for len(b) > 0 {
		f, n := cut(b)
		switch {
		case n == 0:
			e.plain = false
			return
		case f.num == 2:
			e.text = f.data
		case f.num == 1 && string(f.data) == protocol.DefaultContentType:
		default:
			e.plain = false
		}
		b = b[n:]
	}
	e.plain = e.plain && e.text != nil
}

// from takes over a decoded entry.
func (e *entryIn) from(m *clientv1.Entry) {
	*e = entryIn{seq: m.Seq, prev: m.PrevSeq, kind: m.Kind, mid: m.MessageId, full: m}
	e.cmid, e.sender = []byte(m.ClientMessageId), []byte(m.Sender)
	if c := m.Content; c != nil {
		_, text := c.Value.(*clientv1.Content_Text)
		e.text, e.plain = []byte(c.GetText()), text && plainType(c.Type) && len(c.Attributes) == 0
	}
}

func plainType(s string) bool { return s == "" || s == protocol.DefaultContentType }

// entry is the whole entry for the timeline; nil if it is broken.
func (e *entryIn) entry() *clientv1.Entry {
	if e.full != nil {
		return e.full
	}
	if e.kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE && e.plain && utf8.Valid(e.text) {
		return &clientv1.Entry{Seq: e.seq, PrevSeq: e.prev, Kind: e.kind, MessageId: e.mid, ClientMessageId: string(e.cmid), Sender: string(e.sender),
			Content: &clientv1.Content{Value: &clientv1.Content_Text{Text: string(e.text)}}, Countable: true}
	}
	m := new(clientv1.Entry)
	if proto.Unmarshal(e.raw, m) != nil {
		return nil
	}
	return m
}

// eachEntry reads a deliver frame and calls f for each entry; the entry is
// valid only while f runs. It returns false if the frame is broken.
func eachEntry(body []byte, e *entryIn, f func(conv []byte, e *entryIn)) bool {
	var conv []byte
	for b := body; len(b) > 0; {
		x, n := cut(b)
		if n == 0 {
			return false
		}
		if x.num == 1 {
			conv = x.data
		}
		b = b[n:]
	}
	for b := body; len(b) > 0; {
		x, n := cut(b)
		if x.num == 2 {
			if !e.parse(x.data) {
				return false
			}
			f(conv, e)
		}
		b = b[n:]
	}
	return true
}
