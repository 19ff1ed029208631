package gateway

import (
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// shared is one frame for many sessions. Each encoding is made once, when the
// first session needs it. Safe for concurrent use.
type shared struct {
	conv     string
	seq      int64 // of the entry or head; 0 = a receipt
	acked    bool  // a deliver: it waits for the device's ack
	commitNS int64
	author   im.SessionID // does not get it; "" = nobody's
	trace    trace.Context

	frame []byte // protobuf, as it came
	mu    sync.Mutex
	made  [2]atomic.Pointer[[]byte]
}

// newShared makes the frames of a delivery, in order.
func newShared(d *v1.Delivery) []*shared {
	list := make([]shared, 1+len(d.Following))
	out := make([]*shared, len(list))
	for i := range list {
		f := d
		if i > 0 {
			f = d.Following[i-1]
		}
		list[i] = shared{conv: d.ConversationId, seq: f.Seq, acked: f.Acked, commitNS: f.CommitNs, author: im.SessionID(f.ExcludeSessionId), frame: f.Frame,
			trace: trace.Carried(f.Traceparent)}
		out[i] = &list[i]
	}
	return out
}

// in returns the frame in an encoding, ready to be queued; an error means that
// the bytes are no frame.
func (f *shared) in(enc protocol.Encoding) ([]byte, error) {
	if b := f.made[enc].Load(); b != nil {
		return *b, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if b := f.made[enc].Load(); b != nil {
		return *b, nil
	}
	b, err := f.encode(enc)
	if err == nil {
		f.made[enc].Store(&b)
	}
	return b, err
}

// encode makes an encoding.
func (f *shared) encode(enc protocol.Encoding) ([]byte, error) {
	if enc == protocol.Proto {
		return protocol.PrefixProto(f.frame), nil
	}
	var sf clientv1.ServerFrame
	if err := proto.Unmarshal(f.frame, &sf); err != nil {
		return nil, err
	}
	return protocol.EncodeServer(enc, &sf)
}

// entriesOf is how many of the frames are entries of a conversation.
func entriesOf(frames []*shared) (n int) {
	for _, f := range frames {
		if f.acked {
			n++
		}
	}
	return n
}

// head reports whether the frame is a hint that carries nothing.
func (f *shared) head() bool { return !f.acked && f.seq > 0 }

// Frames that answer or tell.

func errorFrame(id uint32, e *clientv1.Error) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Error{Error: e}}
}

func receiptFrame(id uint32, r *clientv1.Receipt) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Receipt{Receipt: r}}
}

func byeFrame(id uint32, b *clientv1.Bye) *clientv1.ServerFrame {
	return &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_Bye{Bye: b}}
}
