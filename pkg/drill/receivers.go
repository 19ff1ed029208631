package drill

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/webhook"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// tryLimit is how long nodes wait for a receiver.
	tryLimit = 2 * time.Second
	// mostTold bounds what one request may hold.
	mostTold = 1 << 20
	// elsewhere is where a receiver that lies sends callers.
	elsewhere = "/elsewhere"
)

// manner is how a receiver behaves.
type manner int

const (
	honest manner = iota
	hanging
	lying
	forgetful // it takes what it is told and cuts the connection, so that it is told again
)

// receiver is a backend of the drill that is told by leaders.
type receiver struct {
	x    *effects
	name string
	ln   net.Listener
	srv  *http.Server

	mu     sync.Mutex
	manner manner
	over   chan struct{} // closed when the manner ends
	rng    *rand.Rand
}

func (x *effects) receiver(name string) (*receiver, error) {
	ln, err := net.Listen("tcp", x.d.front()+":0")
	if err != nil {
		return nil, err
	}
	r := &receiver{x: x, name: name, ln: ln, over: make(chan struct{}), rng: rand.New(rand.NewPCG(x.d.Seed, uint64(len(name))))}
	r.srv = &http.Server{Handler: r, ReadHeaderTimeout: stepLimit}
	go func() { _ = r.srv.Serve(ln) }() // it ends with close
	return r, nil
}

func (r *receiver) url() string { return "http://" + r.ln.Addr().String() + "/told" }

// close lets go of all that hang, and ends it.
func (r *receiver) close() {
	r.behave(honest)
	_ = r.srv.Close()
}

// behave gives the receiver another manner.
func (r *receiver) behave(m manner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.over)
	r.manner, r.over = m, make(chan struct{})
}

// lies are the ways to lie.
const lies = 5

// now is the manner at this moment, when it ends, and a choice below n.
func (r *receiver) now(n int) (manner, <-chan struct{}, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manner, r.over, r.rng.IntN(n)
}

// ServeHTTP takes what it is told.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	at := r.x.now()
	body, err := io.ReadAll(io.LimitReader(req.Body, mostTold))
	if err != nil {
		return // the rest of it never came
	}
	if req.URL.Path == elsewhere {
		r.x.d.crash("a redirect of a receiver was followed")
		return
	}
	h := req.Header
	if err := webhook.Verify(r.x.keys, h.Get(webhook.HeaderID), h.Get(webhook.HeaderTimestamp), h.Get(webhook.HeaderSignature), body, time.Now()); err != nil {
		r.x.d.crash("a receiver was told what is not signed")
		return
	}
	rec, err := r.read(h.Get(webhook.HeaderID), body)
	if err != nil {
		r.x.d.crash("a receiver was told what it cannot read: " + err.Error())
		return
	}
	rec.T, rec.Dup = at, h.Get("Imd-Replay") == "true"
	r.x.d.world.heardOf(rec.Conv)
	m, over, choice := r.now(lies)
	r.answer(w, req, rec, m, over, choice)
}

// answer answers in a manner and records it.
func (r *receiver) answer(w http.ResponseWriter, req *http.Request, rec history.Record, m manner, over <-chan struct{}, choice int) {
	said := func(ack string) { rec.Ack = ack; r.x.record(rec) }
	switch {
	case m == hanging:
		said(history.AckUnknown)
		select {
		case <-over:
		case <-req.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case m == forgetful && choice%2 == 0:
		said(history.AckUnknown)
		panic(http.ErrAbortHandler)
	case m == lying && choice == 0: // it has it, and says nothing that makes sense
		said(history.AckOK)
		_, _ = w.Write([]byte("\x00\xff{{{ no answer"))
	case m == lying && choice == 1: // it has it, and says that it has not
		said(history.AckFail)
		w.WriteHeader(http.StatusInternalServerError)
	case m == lying && choice == 2: // it reads the signature wrongly
		said(history.AckFail)
		w.WriteHeader(http.StatusUnauthorized)
	case m == lying && choice == 3:
		said(history.AckFail)
		http.Redirect(w, req, elsewhere, http.StatusTemporaryRedirect)
	case m == lying: // it has it, and does not stop to say so
		said(history.AckOK)
		r.babble(req.Context(), w, over)
	default:
		said(history.AckOK)
		w.WriteHeader(http.StatusNoContent)
	}
}

// babble writes an answer without end.
func (r *receiver) babble(ctx context.Context, w http.ResponseWriter, over <-chan struct{}) {
	noise := make([]byte, 4096)
	for ctx.Err() == nil {
		if _, err := w.Write(noise); err != nil {
			return
		}
		select {
		case <-over:
			return
		default:
		}
	}
}

// saying is what a request holds, of an event or of a notice.
type saying struct {
	Type           string          `json:"type"`
	ID             string          `json:"id"`
	Cursor         string          `json:"cursor"`
	ConversationID string          `json:"conversation_id"`
	UserID         string          `json:"user_id"`
	MessageID      string          `json:"message_id"`
	Seq            string          `json:"seq"`
	Entry          json.RawMessage `json:"entry"`
}

// read makes a record of a request.
func (r *receiver) read(id string, body []byte) (rec history.Record, err error) {
	var s saying
	if err := json.Unmarshal(body, &s); err != nil {
		return rec, err
	}
	if s.ID != id || s.ConversationID == "" {
		return rec, errors.New("its key is not that of the header, or it names no conversation")
	}
	rec = history.Record{Kind: history.Told, Name: r.name, Reason: s.Type, Entry: id, Conv: s.ConversationID, User: s.UserID}
	if s.Type == history.TypePush || s.Type == history.TypeWithdraw {
		rec.MID, err = strconv.ParseInt(s.MessageID, 10, 64)
		if err == nil {
			rec.Seq, err = strconv.ParseInt(s.Seq, 10, 64)
		}
		return rec, err
	}
	var e clientv1.Entry
	if err := protojson.Unmarshal(s.Entry, &e); err != nil {
		return rec, err
	}
	if rec.N, err = strconv.ParseInt(s.Cursor, 10, 64); err != nil {
		return rec, err
	}
	rec.Seq, rec.MID = e.GetSeq(), e.GetMessageId()
	if e.GetKind() == clientv1.EntryKind_ENTRY_KIND_MESSAGE && e.GetContent() != nil {
		rec.Hash = bench.EntryHash(&e)
	}
	return rec, nil
}
