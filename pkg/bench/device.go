package bench

import (
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// ackEvery and ackAfter say when deliveries are acknowledged.
	ackEvery = 32
	ackAfter = 250 * time.Millisecond
	// retryCap is the longest pause after a refused send.
	retryCap = 2 * time.Second
)

// device is one simulated device of one user. All of it runs on the loop.
type device struct {
	l      *loop
	enc    protocol.Encoding
	dst    netip.AddrPort
	src    netip.Addr
	user   string
	id     string
	token  string
	c      *conn
	online bool
	lastID uint32

	answers map[uint32]func(*clientv1.ServerFrame) // of requests other than sends
	outbox  []*pending                             // unanswered sends, in order
	byFrame map[uint32]*pending
	held    bool // a refused send waits for its time
	unacked map[string]*ackState
	due     int // deliveries since the last ack frame
	ackSet  bool

	onWelcome func(*clientv1.Welcome)
	onEntry   func(conv string, e *clientv1.Entry)
	onHead    func(*clientv1.Head)
	onReceipt func(*clientv1.Receipt)
	onDown    func(code int, reason string, err error)
	byeReason string
}

// pending is one send that has no final answer.
type pending struct {
	frame    *clientv1.Send
	frameID  uint32
	intended time.Time // when it should have left
	tries    int
	done     func(*pending, *clientv1.SendAck)
}

// ackState is what this device has acknowledged of one conversation.
type ackState struct{ acked, have int64 }

func newDevice(l *loop, enc protocol.Encoding, dst netip.AddrPort, src netip.Addr, user, id, token string) *device {
	return &device{l: l, enc: enc, dst: dst, src: src, user: user, id: id, token: token}
}

// connect dials and says hello; with is written in the same envelope.
func (d *device) connect(with ...*clientv1.ClientFrame) error {
	c, err := d.l.dial(d.dst, d.src, d.enc.Subprotocol())
	if err != nil {
		return err
	}
	d.c, d.online, d.held, d.ackSet, d.due, d.byeReason = c, false, false, false, 0, ""
	d.answers, d.byFrame = map[uint32]func(*clientv1.ServerFrame){}, map[uint32]*pending{}
	if d.unacked == nil {
		d.unacked = map[string]*ackState{}
	}
	c.onOpen = func() {
		hello := &clientv1.ClientFrame{Id: d.nextID(), Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
			Version: protocol.Version, Token: d.token, DeviceId: d.id, Class: "bot", Client: "imd-bench"}}}
		d.answers[hello.Id] = func(f *clientv1.ServerFrame) {
			if w := f.GetWelcome(); w != nil {
				d.online = true
				if d.onWelcome != nil {
					d.onWelcome(w)
				}
			}
		}
		d.write(append([]*clientv1.ClientFrame{hello}, with...)...)
	}
	c.onMessage = d.message
	c.onClose = func(code int, err error) {
		d.online = false
		if d.onDown != nil {
			d.onDown(code, d.byeReason, err)
		}
	}
	return nil
}

func (d *device) nextID() uint32 {
	d.lastID++
	if d.lastID == 0 {
		d.lastID = 1
	}
	return d.lastID
}

// write sends frames in one envelope.
func (d *device) write(frames ...*clientv1.ClientFrame) {
	var buf []byte
	for _, f := range frames {
		buf, _ = protocol.AppendFrame(buf, d.enc, f)
	}
	op := byte(opBinary)
	if d.enc == protocol.JSON {
		op = opText
	}
	d.c.send(op, buf)
}

// request writes f under a new id; answer gets what comes back for it.
func (d *device) request(f *clientv1.ClientFrame, answer func(*clientv1.ServerFrame)) {
	f.Id = d.nextID()
	d.answers[f.Id] = answer
	d.write(f)
}

// send puts a message into the outbox and, unless a refused one is waiting,
// writes it. done is called once, with ACK_OK or ACK_FAIL.
func (d *device) send(s *clientv1.Send, intended time.Time, done func(*pending, *clientv1.SendAck)) {
	if s.ClientMessageId == "" {
		s.ClientMessageId = newUUID()
	}
	p := &pending{frame: s, intended: intended, done: done}
	d.outbox = append(d.outbox, p)
	if d.online && !d.held {
		d.writeSend(p)
	}
}

func (d *device) writeSend(p *pending) {
	p.tries++
	p.frame.Resend = p.tries > 1
	p.frameID = d.nextID()
	d.byFrame[p.frameID] = p
	d.write(&clientv1.ClientFrame{Id: p.frameID, Kind: &clientv1.ClientFrame_Send{Send: p.frame}})
}

// resendAll writes the whole outbox again, in order.
func (d *device) resendAll() {
	d.held = false
	for _, p := range d.outbox {
		if !d.online {
			return
		}
		d.writeSend(p)
	}
}

func (d *device) message(data []byte) {
	_ = protocol.DecodeServerEnvelope(d.enc, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
		d.frame(f)
		return nil
	})
}

func (d *device) frame(f *clientv1.ServerFrame) {
	switch k := f.Kind.(type) {
	case *clientv1.ServerFrame_SendAck:
		d.sendAck(f.Id, k.SendAck)
	case *clientv1.ServerFrame_Deliver:
		for _, e := range k.Deliver.Entries {
			d.delivered(k.Deliver.ConversationId, e)
		}
	case *clientv1.ServerFrame_Ping:
		d.write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
	case *clientv1.ServerFrame_Bye:
		d.byeReason = k.Bye.Reason
	case *clientv1.ServerFrame_Head:
		if d.onHead != nil {
			d.onHead(k.Head)
		}
	case *clientv1.ServerFrame_Receipt:
		if f.Id == 0 && d.onReceipt != nil {
			d.onReceipt(k.Receipt)
		}
	}
	if f.Id != 0 {
		if a := d.answers[f.Id]; a != nil {
			delete(d.answers, f.Id)
			a(f)
		}
	}
}

func (d *device) sendAck(id uint32, a *clientv1.SendAck) {
	p := d.byFrame[id]
	delete(d.byFrame, id)
	if p == nil || (p.frameID != id && a.Status != clientv1.Ack_ACK_OK) {
		return // of an earlier copy
	}
	if a.Status == clientv1.Ack_ACK_RETRY || a.Status == clientv1.Ack_ACK_UNSPECIFIED {
		d.refused(p, a)
		return
	}
	for i, q := range d.outbox {
		if q == p {
			d.outbox = append(d.outbox[:i], d.outbox[i+1:]...)
			p.done(p, a)
			return
		}
	}
}

// refused waits as told and then sends the whole outbox again, in order.
func (d *device) refused(p *pending, a *clientv1.SendAck) {
	if d.held {
		return
	}
	d.held = true
	wait := time.Duration(a.GetError().GetRetryAfterMs()) * time.Millisecond
	wait = min(max(wait, 10*time.Millisecond<<min(p.tries, 6)), retryCap)
	c := d.c
	d.l.at(d.l.now.Add(wait), func() {
		if d.c == c && d.held {
			d.resendAll()
		}
	})
}

// delivered counts an entry toward the next ack frame.
func (d *device) delivered(conv string, e *clientv1.Entry) {
	s := d.unacked[conv]
	if s == nil {
		s = &ackState{acked: e.PrevSeq, have: e.PrevSeq}
		d.unacked[conv] = s
	}
	fresh := e.Seq > s.have
	s.have = max(s.have, e.Seq)
	if fresh && d.onEntry != nil {
		d.onEntry(conv, e)
	}
	d.due++
	switch {
	case d.due >= ackEvery:
		d.ack()
	case !d.ackSet:
		d.ackSet = true
		c := d.c
		d.l.at(d.l.now.Add(ackAfter), func() {
			if d.c == c {
				d.ack()
			}
		})
	}
}

// ack acknowledges everything held so far, in one frame.
func (d *device) ack() {
	d.due, d.ackSet = 0, false
	a := &clientv1.DeliveryAck{}
	for conv, s := range d.unacked {
		if s.have > s.acked {
			a.Ranges = append(a.Ranges, &clientv1.AckRange{ConversationId: conv, AfterSeq: s.acked, Seq: s.have})
			s.acked = s.have
		}
	}
	if len(a.Ranges) > 0 && d.online {
		d.write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: a}})
	}
}

// newUUID makes a random UUID, version 4.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	b[6], b[8] = b[6]&15|64, b[8]&63|128
	var out [36]byte
	hex.Encode(out[:8], b[:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:], b[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}

// textOf is a content whose text has n bytes and begins with the time it
// should have left, so that the receiver knows how long it took.
func textOf(intended time.Time, n int) *clientv1.Content {
	text := make([]byte, max(n, stampLen))
	for i := range text {
		text[i] = 'x'
	}
	ns := uint64(intended.UnixNano())
	for i := stampLen - 1; i >= 0; i-- {
		text[i] = "0123456789abcdef"[ns&15]
		ns >>= 4
	}
	return &clientv1.Content{Value: &clientv1.Content_Text{Text: string(text)}}
}

const stampLen = 16

// stampOf reads the time of textOf; false if there is none.
func stampOf(c *clientv1.Content) (time.Time, bool) {
	t := c.GetText()
	if len(t) < stampLen {
		return time.Time{}, false
	}
	var ns uint64
	for i := range stampLen {
		switch b := t[i]; {
		case b >= '0' && b <= '9':
			ns = ns<<4 | uint64(b-'0')
		case b >= 'a' && b <= 'f':
			ns = ns<<4 | uint64(b-'a'+10)
		default:
			return time.Time{}, false
		}
	}
	return time.Unix(0, int64(ns)), true
}
