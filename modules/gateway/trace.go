package gateway

import (
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// maxEach is up to how many sessions of a delivery each has a record of its own:
// the audience of a large group would push everything else out.
const maxEach = 16

// answered remembers that a sender was told that its message is stored.
func (s *session) answered(now time.Time, a run.Answer) {
	if s.g.Trace == nil {
		return
	}
	if a.Ack.Status != clientv1.Ack_ACK_OK {
		s.g.Trace.Span(trace.Span{Context: trace.Carried(a.Send.Send.Traceparent), Name: "send", Kind: trace.Server, Begin: a.Send.Arrived, End: now, Failed: a.Ack.Error.GetReason()})
		return
	}
	s.g.Trace.Add(trace.Record{Stage: trace.Answered, Message: im.MessageID(a.Ack.MessageId), Conv: trace.Conv(a.Ack.ConversationId), Seq: a.Ack.Seq,
		At: now, Took: now.Sub(a.Send.Arrived), Note: string(s.id), Trace: trace.Carried(a.Send.Send.Traceparent)})
}

// recordLists are used again and again: each is read once and forgotten.
var recordLists = sync.Pool{New: func() any { return new([]trace.Record) }}

// remember keeps the records that fill appends.
func (g *Gateway) remember(fill func(records []trace.Record) []trace.Record) {
	list := recordLists.Get().(*[]trace.Record)
	*list = fill((*list)[:0])
	g.Trace.Add(*list...)
	clear(*list)
	recordLists.Put(list)
}

// arrived remembers deliveries of one conversation, and to which sessions they
// went.
func (g *Gateway) arrived(frames []*shared, to []*session) {
	if g.Trace == nil {
		return
	}
	now, conv := time.Now(), trace.Conv(frames[0].conv)
	g.remember(func(records []trace.Record) []trace.Record {
		for _, f := range frames {
			if !f.acked {
				continue
			}
			records = append(records, trace.Record{Stage: trace.Arrived, Conv: conv, Seq: f.seq, At: now, Count: int32(len(to)), Trace: f.trace.Child(), Parent: f.trace})
			if len(to) > maxEach {
				continue
			}
			for _, x := range to {
				if x.id != f.author {
					records = append(records, trace.Record{Stage: trace.Queued, Conv: conv, Seq: f.seq, At: now, Note: string(x.id)})
				}
			}
		}
		return records
	})
}

// arrivedAt counts and remembers deliveries to many sessions of a group.
func (g *Gateway) arrivedAt(frames []*shared, sessions int) {
	g.Tally.Delivered(sessions * entriesOf(frames))
	if g.Trace == nil {
		return
	}
	now, conv := time.Now(), trace.Conv(frames[0].conv)
	g.remember(func(records []trace.Record) []trace.Record {
		for _, f := range frames {
			if f.acked {
				records = append(records, trace.Record{Stage: trace.Arrived, Conv: conv, Seq: f.seq, At: now, Count: int32(sessions), Trace: f.trace.Child(), Parent: f.trace})
			}
		}
		return records
	})
}

// acknowledged remembers that the device has entries.
func (s *session) acknowledged(now time.Time, ranges []*clientv1.AckRange) {
	if s.g.Trace == nil {
		return
	}
	records := make([]trace.Record, 0, len(ranges))
	for _, r := range ranges {
		records = append(records, trace.Record{Stage: trace.Acknowledged, Conv: trace.Conv(r.ConversationId), From: r.AfterSeq, Seq: r.Seq, At: now, Note: string(s.id)})
	}
	s.g.Trace.Add(records...)
}
