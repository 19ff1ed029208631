package trace

import (
	"context"
	"testing"
	"time"
)

const example = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseContext(t *testing.T) {
	for s, want := range map[string]string{
		example: example,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-later": example, // of a version to come
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00":       "",      // not sampled
	} {
		if c, ok := ParseContext(s); !ok || c.String() != want {
			t.Errorf("%s: %q, %v", s, c, ok)
		}
	}
	for _, s := range []string{
		"", "00", example[:54], example + "0", example + "-x", "ff" + example[2:], "0G" + example[2:],
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c+b7ad6b7169203331-01",
	} {
		if c, ok := ParseContext(s); ok || c.Sampled() {
			t.Errorf("%q is one", s)
		}
	}
}

func FuzzParseContext(f *testing.F) {
	f.Add(example)
	f.Fuzz(func(t *testing.T, s string) {
		if c, ok := ParseContext(s); ok && c.Sampled() {
			if again, ok := ParseContext(c.String()); !ok || again != c {
				t.Errorf("%q becomes %q", s, c)
			}
		}
	})
}

func TestContexts(t *testing.T) {
	c := Carried(example)
	child := c.Child()
	at, span := c.IDs()
	childAt, childSpan := child.IDs()
	if at != childAt || span == childSpan || !child.Sampled() {
		t.Errorf("the child of %v is %v", c, child)
	}
	if (Context{}).Child().Sampled() || (Context{}).String() != "" {
		t.Error("a child of nothing is something")
	}
	ctx := With(context.Background(), c)
	if From(ctx) != c || From(context.Background()).Sampled() || With(ctx, Context{}) != ctx {
		t.Error("a context does not keep it")
	}
}

// Who asks decides; of what nobody has decided a share is traced; and without
// anybody who wants spans nothing is.
func TestBegin(t *testing.T) {
	l := New(DefaultBytes, time.Minute, time.Now)
	sampled := func(said string) bool { c, _ := l.Begin(said); return c.Sampled() }
	if sampled(example) {
		t.Error("traced for nobody")
	}
	share, got := 0.25, 0
	l.Export(func(Span) { got++ }, func() float64 { return share })
	n := 0
	for range 10_000 {
		if sampled("") {
			n++
		}
	}
	if n < 2200 || n > 2800 {
		t.Errorf("%d of 10,000 are traced, not a quarter", n)
	}
	share = 0
	if c, parent := l.Begin(example); parent.String() != example || c == parent || !c.Sampled() || sampled("") || sampled(example[:53]+"00") {
		t.Errorf("%v below %v", c, parent)
	}
	l.Span(Span{Name: "not sampled"})
	l.Span(Span{Context: Carried(example)})
	l.Add(Record{Stage: Committed, At: time.Now()}, Record{Stage: Acknowledged, At: time.Now(), Trace: Carried(example)})
	if got != 2 {
		t.Errorf("%d spans", got)
	}
	l.Export(nil, nil)
	l.Span(Span{Context: Carried(example)})
	var none *Log
	none.Span(Span{Context: Carried(example)})
	if c, _ := none.Begin(example); c.Sampled() || got != 2 {
		t.Error("spans without anybody who wants them")
	}
}

// The records of a message become spans, each with what it tells.
func TestRecordsBecomeSpans(t *testing.T) {
	l := New(DefaultBytes, time.Minute, time.Now)
	var got []Span
	l.Export(func(x Span) { got = append(got, x) }, func() float64 { return 0 })
	root := Carried(example)
	at := time.Unix(1000, 0)
	l.Add(Record{Stage: Committed, Message: 7, Seq: 3, At: at, Took: time.Second, Trace: root.Child(), Parent: root},
		Record{Stage: Delivered, Seq: 3, At: at, Count: 2, Note: "g1", Failed: true, Trace: root.Child(), Parent: root})
	if len(got) != 2 || got[0].Name != "persist" || got[0].Begin != at.Add(-time.Second) || got[0].End != at || got[0].Parent != root || got[0].Kind != Internal || got[0].Failed != "" {
		t.Fatalf("%+v", got)
	}
	attrs := map[string]Attr{}
	for _, a := range append(got[0].Attrs, got[1].Attrs...) {
		attrs[a.Key] = a
	}
	if attrs["messaging.message.id"].Text != "7" || attrs["imd.peer"].Text != "g1" || attrs["imd.sessions"].Count != 2 || got[1].Kind != Client || got[1].Failed == "" {
		t.Errorf("%+v", got)
	}
}
