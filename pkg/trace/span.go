package trace

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// Kind is what a span is in a call.
type Kind uint8

// The kinds.
const (
	Internal Kind = iota // no call
	Server               // a call is answered
	Client               // a call is made
)

// Span is a part of the work on something that is traced, when it is over.
type Span struct {
	Context
	Parent Context // zero = there is none in this program
	Name   string
	Kind   Kind
	Begin  time.Time
	End    time.Time
	Failed string // why it failed, in a word; "" = it did not
	Attrs  []Attr
}

// Attr is a detail of a span.
type Attr struct {
	Key   string
	Text  string
	Count int64 // if Text is empty
}

// sink is where spans go.
type sink struct {
	to    func(Span)
	share func() float64
}

// Export hands spans to to, which must not wait, for a share of 0 to 1 of what
// begins here. nil = no more.
func (l *Log) Export(to func(Span), share func() float64) {
	if to == nil {
		l.sink.Store(nil)
		return
	}
	l.sink.Store(&sink{to, share})
}

// Begin decides whether spans are made of what begins now, and gives its Context;
// the caller hands the span over when it is over. traceparent is what the caller
// was told of who asks: its decision holds, and parent is it; "" = nothing.
func (l *Log) Begin(traceparent string) (c, parent Context) {
	if l == nil {
		return c, parent
	}
	s := l.sink.Load()
	if s == nil {
		return c, parent
	}
	parent, ok := ParseContext(traceparent)
	switch {
	case ok:
		return parent.Child(), parent
	case rand.Float64() < s.share():
		return newTrace(), parent
	}
	return c, parent
}

// Span hands a span over, if it is sampled and somebody wants spans.
func (l *Log) Span(x Span) {
	if l == nil || !x.Sampled() {
		return
	}
	if s := l.sink.Load(); s != nil {
		s.to(x)
	}
}

// spanNames are what spans of the stages are called.
var spanNames = [...]string{Committed: "persist", Repeated: "persist", Answered: "send", HandedOn: "push", Fanned: "route", Delivered: "deliver", Arrived: "receive", Queued: "queue", Acknowledged: "acknowledge"}

// span is the record as a span.
func (r *Record) span() Span {
	x := Span{Context: r.Trace, Parent: r.Parent, Name: spanNames[r.Stage], Begin: r.At.Add(-r.Took), End: r.At, Attrs: []Attr{
		{Key: "messaging.system", Text: "imd"}, {Key: "messaging.operation.name", Text: spanNames[r.Stage]}, {Key: "imd.stage", Text: r.Stage.String()},
		{Key: "imd.seq", Count: r.Seq},
	}}
	if r.Message != 0 {
		x.Attrs = append(x.Attrs, Attr{Key: "messaging.message.id", Text: strconv.FormatInt(int64(r.Message), 10)})
	}
	if r.Note != "" {
		x.Attrs = append(x.Attrs, Attr{Key: noteKey(r.Stage), Text: r.Note})
	}
	if r.Count > 0 {
		x.Attrs = append(x.Attrs, Attr{Key: "imd.sessions", Count: int64(r.Count)})
	}
	switch r.Stage {
	case Answered, Arrived:
		x.Kind = Server
	case HandedOn, Delivered:
		x.Kind = Client
	}
	if r.Failed {
		x.Failed = "failed"
	}
	return x
}

// noteKey is what the note of a stage is.
func noteKey(s Stage) string {
	if s == HandedOn || s == Delivered {
		return "imd.peer"
	}
	return "imd.session"
}
