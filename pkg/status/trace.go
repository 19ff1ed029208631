package status

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/idgen"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// TraceStatus is the life of one message as the nodes remember it.
type TraceStatus struct {
	Message string         `json:"message_id"`
	Seq     int64          `json:"seq,string"`       // 0 = nobody knows it
	Made    time.Time      `json:"made"`             // when the id was
	Worker  int            `json:"worker"`           // that made it
	Stored  *StoredMessage `json:"stored,omitempty"` // only if a conversation was named
	Stages  []TraceStage   `json:"stages"`
	Nodes   []TraceNode    `json:"nodes"`
}

// TraceStage is one stage of it.
type TraceStage struct {
	At      time.Time `json:"at"`       // when it ended, by the clock of the node
	AfterMS float64   `json:"after_ms"` // since the first stage began
	TookMS  float64   `json:"took_ms"`  // 0 = it is a moment
	Node    string    `json:"node_id"`
	Stage   string    `json:"stage"`
	Note    string    `json:"note,omitempty"`     // a node or a session, as the stage has it
	Count   int32     `json:"sessions,omitempty"` // how many
	Failed  bool      `json:"failed,omitempty"`
}

// TraceNode is a node that was asked.
type TraceNode struct {
	Node  string    `json:"node_id"`
	Since time.Time `json:"since,omitzero"`  // of its oldest record; zero = it has none
	Error string    `json:"error,omitempty"` // it did not tell
}

// gather asks all nodes twice: who knows the id tells where the message is, and
// what is known by its place is asked for then. A stored message, if it was looked
// for, tells that before.
func (d Deps) gather(ctx context.Context, id im.MessageID, stored *StoredMessage) TraceStatus {
	q := trace.Query{Message: id}
	if stored != nil {
		q.Conv, q.Seq = trace.Conv(stored.Conversation), stored.Seq
		return lifeOf(id, q.Seq, d.Trace(ctx, q))
	}
	all := d.Trace(ctx, q)
	for _, n := range all {
		for _, r := range n.Records {
			if r.Seq > 0 {
				q.Conv, q.Seq = r.Conv, r.Seq
			}
		}
	}
	if q.Seq > 0 {
		all = d.Trace(ctx, q)
	}
	return lifeOf(id, q.Seq, all)
}

// lifeOf puts the records of all nodes in the order of time.
func lifeOf(id im.MessageID, seq int64, all []peer.Remembered) TraceStatus {
	out := TraceStatus{Message: id.String(), Seq: seq, Made: idgen.Time(id), Worker: idgen.Worker(id), Stages: []TraceStage{}}
	var first time.Time
	for _, n := range all {
		node := TraceNode{Node: string(n.Node), Since: n.Since}
		if n.Err != nil {
			node.Error = im.Wire(n.Err).GetMessage()
			if node.Error == "" {
				node.Error = "does not answer"
			}
		}
		out.Nodes = append(out.Nodes, node)
		for _, r := range n.Records {
			if began := r.At.Add(-r.Took); first.IsZero() || began.Before(first) {
				first = began
			}
			out.Stages = append(out.Stages, TraceStage{At: r.At, TookMS: millis(r.Took), Node: string(n.Node), Stage: r.Stage.String(), Note: r.Note, Count: r.Count, Failed: r.Failed})
		}
	}
	for i := range out.Stages {
		out.Stages[i].AfterMS = millis(out.Stages[i].At.Sub(first))
	}
	slices.SortStableFunc(out.Stages, func(a, b TraceStage) int { return a.At.Compare(b.At) })
	slices.SortFunc(out.Nodes, func(a, b TraceNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

// millis is a duration in milliseconds.
func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (d Deps) trace(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("message"), 10, 64)
	if err != nil || id <= 0 {
		http.Error(w, "a message id is a number", http.StatusBadRequest)
		return
	}
	var stored *StoredMessage
	if conv := r.URL.Query().Get("conversation"); conv != "" {
		if stored, err = findStored(r.Context(), d.History, conv, im.MessageID(id), idgen.Time(im.MessageID(id))); err != nil {
			unanswered(w, err)
			return
		}
	}
	out := d.gather(r.Context(), im.MessageID(id), stored)
	out.Stored = stored
	var rows [][]string
	for _, s := range out.Stages {
		rows = append(rows, s.Row())
	}
	Handler(func(*http.Request) (any, Page) {
		return out, Page{Title: fmt.Sprintf("message %s, seq %d", out.Message, out.Seq), Tables: []Table{{Columns: TraceColumns, Rows: rows}}}
	}).ServeHTTP(w, r)
}

// unanswered says why the store was not read.
func unanswered(w http.ResponseWriter, err error) {
	e := im.Wire(err)
	status := http.StatusServiceUnavailable
	switch {
	case e.GetReason() == "not_found" || e.GetReason() == "not_member":
		status = http.StatusNotFound
	case !e.GetRetryable():
		status = http.StatusBadRequest
	}
	http.Error(w, "the conversation cannot be read: "+cmp.Or(e.GetMessage(), e.GetReason()), status)
}

// kindWord is a kind of entries as people read it.
func kindWord(k clientv1.EntryKind) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(k.String(), "ENTRY_KIND_")), "_", " ")
}

// TraceColumns are the columns of Row.
var TraceColumns = []string{"after", "took", "node", "stage", "detail"}

// Row is the stage as people read it.
func (s TraceStage) Row() []string {
	var parts []string
	if s.Note != "" {
		parts = append(parts, s.Note)
	}
	if s.Count > 0 {
		parts = append(parts, fmt.Sprintf("sessions: %d", s.Count))
	}
	if s.Failed {
		parts = append(parts, "FAILED")
	}
	took := ""
	if s.TookMS > 0 {
		took = fmt.Sprintf("%.2f ms", s.TookMS)
	}
	return []string{fmt.Sprintf("%.2f ms", s.AfterMS), took, s.Node, s.Stage, strings.Join(parts, ", ")}
}
