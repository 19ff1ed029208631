package peer

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect/v2"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Remembered is what one node remembers of a message.
type Remembered struct {
	Node    im.NodeID
	Records []trace.Record
	Since   time.Time // of its oldest record of any message; zero = there are none
	Err     error     // it was not told; nil = it was
}

// UseTrace lets other nodes ask for what this process remembers of messages.
// Before Register; nil = nothing is.
func (s *Set) UseTrace(l *trace.Log) { s.trace = l }

// Trace asks every node, this one first, for what it remembers of a message. It
// takes 500 ms at most.
func (s *Set) Trace(ctx context.Context, q trace.Query) []Remembered {
	found, since := s.trace.Find(q)
	out := []Remembered{{Node: s.node, Records: found, Since: since}}
	p := s.others.Load()
	if p == nil {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, AttemptTimeout)
	defer cancel()
	var mu sync.Mutex
	var calls sync.WaitGroup
	for _, o := range *p {
		calls.Go(func() {
			r := o.remote.recall(ctx, q)
			mu.Lock()
			defer mu.Unlock()
			out = append(out, r)
		})
	}
	calls.Wait()
	return out
}

// recall asks one node.
func (r *remote) recall(ctx context.Context, q trace.Query) Remembered {
	out := Remembered{Node: r.id()}
	r.begin()
	defer r.end()
	res, err := r.peer.Trace(ctx, &v1.TraceRequest{MessageId: int64(q.Message), Conversation: q.Conv, Seq: q.Seq})
	if err != nil {
		out.Err = im.FromConnect("peer.Trace", err)
		return out
	}
	if res.SinceNs != 0 {
		out.Since = time.Unix(0, res.SinceNs)
	}
	for _, x := range res.Records {
		out.Records = append(out.Records, trace.Record{Stage: trace.StageOf(x.Stage), Failed: x.Failed, Count: x.Count, Message: im.MessageID(x.MessageId),
			Conv: x.Conversation, Seq: x.Seq, At: time.Unix(0, x.AtNs), Took: time.Duration(x.TookNs), Note: x.Note})
	}
	return out
}

// Trace tells what this process remembers of a message; see PeerService.
func (c checker) Trace(_ context.Context, r *v1.TraceRequest) (*v1.TraceResponse, error) {
	found, since := c.s.trace.Find(trace.Query{Message: im.MessageID(r.MessageId), Conv: r.Conversation, Seq: r.Seq})
	res := &v1.TraceResponse{NodeId: string(c.s.node)}
	if !since.IsZero() {
		res.SinceNs = since.UnixNano()
	}
	for _, x := range found {
		res.Records = append(res.Records, &v1.TraceRecord{Stage: x.Stage.String(), AtNs: x.At.UnixNano(), TookNs: int64(x.Took), MessageId: int64(x.Message),
			Conversation: x.Conv, Seq: x.Seq, Note: x.Note, Count: x.Count, Failed: x.Failed})
	}
	return res, nil
}

// attempt is the span of one attempt of a call.
func attempt(p *place, m *Method, here, parent trace.Context, begin time.Time, took time.Duration, err error) trace.Span {
	x := trace.Span{Context: here, Parent: parent, Name: m.Name, Kind: trace.Client, Begin: begin, End: begin.Add(took),
		Attrs: []trace.Attr{{Key: "imd.peer", Text: p.id()}}}
	if err != nil {
		x.Failed = connect.CodeOf(err).String()
	}
	return x
}

// traced carries the trace of a call's context to the other side.
func traced(next connect.ClientFunc) connect.ClientFunc {
	return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
		if c := trace.From(ctx); c.Sampled() {
			if info, ok := connect.CallInfoForClientContext(ctx); ok {
				info.RequestHeader().Set(trace.Header, c.String())
			}
		}
		return next(ctx, spec)
	}
}
