package verify

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/history"
)

// ErrNothing is a folder or a sequence of records that cannot be judged: a file
// is missing, empty or malformed. It is no verdict about the server; record
// again.
var ErrNothing = errors.New("nothing to judge")

// History is a recorded run in memory. Texts are interned, so that records are
// small and compare fast. It is not changed after loading and may be judged by
// several goroutines at once.
type History struct {
	// Run is what run.json said.
	Run history.Run

	names *names
	files []string

	ops    []op
	views  []view
	rows   []row
	spans  []span
	faults []fault
	acts   []act  // of the control plane and of sessions, file by file
	deeds  []deed // what leaders do for others
}

// at is where a record came from.
type at struct{ file, line uint32 }

// name is an interned text; 0 is "".
type name uint32

// op is an invoke or a return of a send.
type op struct {
	t, mid, seq, prev, n           int64
	user, device, conv, cmid, hash name
	reason                         name
	at                             at
	ack                            ack // none for an invoke
	dup                            bool
}

// ack is the answer a return carries.
type ack uint8

const (
	ackNone ack = iota // the op is an invoke
	ackOK
	ackRetry
	ackFail
	ackUnknown
)

var acks = map[string]ack{history.AckOK: ackOK, history.AckRetry: ackRetry, history.AckFail: ackFail, history.AckUnknown: ackUnknown}

var ackNames = [...]string{"", history.AckOK, history.AckRetry, history.AckFail, history.AckUnknown}

// view is what a device did or showed.
type view struct {
	t, mid, seq        int64
	user, device, conv name
	sender, hash, word name // word: the entry kind of a show, the data_epoch of a connect or resync
	at                 at
	kind               viewKind
}

type viewKind uint8

const (
	viewShow viewKind = iota
	viewOpen
	viewHave
	viewConnect
	viewDisconnect
	viewResync
	viewSettled
	viewDigest
	viewDiffers // a digest that is not that of what syncs have told
)

var viewKinds = map[history.Kind]viewKind{history.Show: viewShow, history.Open: viewOpen, history.Have: viewHave, history.Connect: viewConnect,
	history.Disconnect: viewDisconnect, history.Resync: viewResync, history.Settled: viewSettled, history.Digest: viewDigest}

var viewNames = [...]history.Kind{history.Show, history.Open, history.Have, history.Connect, history.Disconnect, history.Resync, history.Settled, history.Digest, history.Digest}

// row is an entry of the final log.
type row struct { // hash 0, of a message = its content is gone
	mid, seq, prev           int64
	conv, sender, cmid, hash name
	entry                    name
	at                       at
}

// span says that a user may see (seq, to] of a conversation; to 0 = to the end.
type span struct {
	seq, to    int64
	user, conv name
	at         at
}

// holds reports whether seq is within the span.
func (s *span) holds(seq int64) bool { return seq > s.seq && (s.to == 0 || seq <= s.to) }

// fault is the start or the stop of a fault.
type fault struct {
	t     int64
	name  name
	at    at
	stop  bool
	aside bool // clients must not feel it
}

// act is what happened in the control plane, and to those who log in. Which fields count depends on the
// kind, as in history.Record.
type act struct {
	t, to, n, seq             int64
	kind                      history.Kind
	user, device, entry, name name
	reason                    name
	prev                      int64
	login, list               name // the sender and the hash of a record
	at                        at
	ack                       ack
	stop, was                 bool
}

// actFiles say which kinds a file of the control plane holds.
var actFiles = map[string][]history.Kind{
	"control.log":  {history.Node, history.Etcd, history.Put, history.Ring},
	"leader.log":   {history.Claim, history.Effect},
	"ids.log":      {history.Made},
	"node-":        {history.Began, history.Led, history.Seen, history.Applied},
	"sessions.log": {history.Login, history.Logout},
	"routes.log":   {history.Route},
	"presence.log": {history.Sight},
}

// answered are the kinds of acts that carry an answer.
var answered = []history.Kind{history.Claim, history.Effect, history.Put, history.Login, history.Route}

var routeNames = []string{history.RouteClaim, history.RouteRefresh, history.RouteRelease, history.RouteLookup, history.RouteForget}

// names interns texts.
type names struct {
	ids   map[string]name
	texts []string
}

func newNames() *names { return &names{map[string]name{"": 0}, []string{""}} }

func (n *names) id(s string) name {
	if id, ok := n.ids[s]; ok {
		return id
	}
	s = strings.Clone(s) // s may be a part of a whole line
	id := name(len(n.texts))
	n.ids[s] = id
	n.texts = append(n.texts, s)
	return id
}

func (n *names) text(id name) string { return n.texts[id] }

// The names that the judge itself knows. newHistory interns them in this order.
// nameMade stands for whatever a mutation invents.
const (
	nameMessage name = iota + 1
	nameReused
	nameMade
	nameUp
	nameDown
	nameStopping
	namePaused
	nameResumed
	nameLimping
	nameAway
	nameRestored
	nameBad
	nameReplaced
	nameSuperseded
	nameKilled
	nameSlow
	nameKept
	nameClaim
	nameRefresh
	nameRelease
	nameLookup
	nameForget
	namePush
	nameTakenBack
)

// entryMessage is the entry kind of a row that holds a message, reasonReused
// the refusal of a key that was used for another content.
const (
	entryMessage = "message"
	reasonReused = "id_reused"
)

// standingKept is the answer to a refresh of a route that is there. What was put back
// is restored, as etcd may be.
const standingKept = "kept"

func newHistory() *History {
	h := &History{names: newNames()}
	for _, s := range []string{entryMessage, reasonReused, "(made)", history.Up, history.Down, history.Stopping, history.Paused, history.Resumed,
		history.EtcdLimping, history.EtcdAway, history.EtcdRestored, history.Bad, history.Replaced, history.Superseded, history.Killed, history.ClockSlow,
		standingKept, history.RouteClaim, history.RouteRefresh, history.RouteRelease, history.RouteLookup, history.RouteForget,
		history.TypePush, history.TypeWithdraw} {
		h.names.id(s)
	}
	return h
}

// Load reads the history in the folder dir. The error wraps [ErrNothing] if
// there is none, or not a whole one.
func Load(dir string) (*History, error) {
	l := newLoader()
	run, err := history.Read(dir, l.add)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNothing, err)
	}
	return l.done(run, dir)
}

// New takes a history from memory: pairs of a file's name and a record, in the
// order in which the files hold them. Errors are those of [Load].
func New(run history.Run, records iter.Seq2[string, history.Record]) (*History, error) {
	l := newLoader()
	for file, r := range records {
		if err := l.add(file, &r); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrNothing, file, err)
		}
	}
	return l.done(run, "the history")
}

// loader fills a History record by record.
type loader struct {
	h     *History
	file  string
	index map[string]uint32
	lines []uint32 // by file
}

func newLoader() *loader { return &loader{h: newHistory(), index: map[string]uint32{}} }

// place counts the lines of the record's file.
func (l *loader) place(file string) at {
	id, ok := l.index[file]
	if !ok {
		id = uint32(len(l.h.files))
		l.index[strings.Clone(file)] = id
		l.h.files = append(l.h.files, file)
		l.lines = append(l.lines, 0)
	}
	l.lines[id]++
	return at{id, l.lines[id]}
}

// add checks a record and keeps it.
func (l *loader) add(file string, r *history.Record) error {
	p := l.place(file)
	switch {
	case strings.HasSuffix(file, ".ops"):
		return l.op(r, p)
	case strings.HasSuffix(file, ".view"):
		return l.view(r, p)
	case file == "db.final":
		return l.row(r, p)
	case file == "members.final":
		return l.span(r, p)
	case file == "faults.log":
		return l.fault(r, p)
	}
	if file == "effects.log" {
		return l.deed(r, p)
	}
	if strings.HasPrefix(file, "node-") {
		file = "node-"
	}
	if kinds, ok := actFiles[file]; ok {
		return l.act(kinds, r, p)
	}
	return fmt.Errorf("no kind of file is named %s", file)
}

func (l *loader) op(r *history.Record, p at) error {
	id := l.h.names.id
	o := op{t: r.T, mid: r.MID, seq: r.Seq, prev: r.Prev, n: r.N, user: id(r.User), device: id(r.Device), conv: id(r.Conv), cmid: id(r.CMID),
		hash: id(r.Hash), reason: id(r.Reason), at: p, ack: acks[r.Ack], dup: r.Dup}
	switch {
	case r.Kind != history.Invoke && r.Kind != history.Return:
		return fmt.Errorf("a record of kind %q does not belong here", r.Kind)
	case r.User == "" || r.Conv == "" || r.CMID == "":
		return errors.New("a send without user, conversation or client message id")
	case r.Kind == history.Invoke && (r.Hash == "" || r.N < 1):
		return errors.New("an invoke without hash or number")
	case r.Kind == history.Return && o.ack == ackNone:
		return fmt.Errorf("a return with the unknown answer %q", r.Ack)
	}
	if r.Kind == history.Invoke {
		o.ack = ackNone
	}
	l.h.ops = append(l.h.ops, o)
	return nil
}

func (l *loader) view(r *history.Record, p at) error {
	id := l.h.names.id
	kind, ok := viewKinds[r.Kind]
	switch {
	case !ok:
		return fmt.Errorf("a record of kind %q does not belong here", r.Kind)
	case r.User == "" || r.Device == "":
		return errors.New("a view without user or device")
	case (kind == viewShow || kind == viewOpen || kind == viewHave) && r.Conv == "":
		return errors.New("a view without conversation")
	case kind == viewShow && r.Seq < 1:
		return errors.New("a show without seq")
	case kind == viewDigest && r.Ack != history.AckOK && r.Ack != history.AckFail:
		return fmt.Errorf("a digest with the unknown answer %q", r.Ack)
	case kind == viewDigest && r.Ack == history.AckFail:
		kind = viewDiffers
	}
	v := view{t: r.T, mid: r.MID, seq: r.Seq, user: id(r.User), device: id(r.Device), conv: id(r.Conv), sender: id(r.Sender), hash: id(r.Hash), at: p, kind: kind}
	switch kind {
	case viewShow:
		if v.word = id(r.Entry); v.word == 0 {
			v.word = nameMessage
		}
	case viewConnect, viewResync:
		v.word = id(r.Name)
	case viewDisconnect, viewSettled:
		v.conv = 0
	}
	l.h.views = append(l.h.views, v)
	return nil
}

func (l *loader) row(r *history.Record, p at) error {
	id := l.h.names.id
	switch {
	case r.Kind != history.Row:
		return fmt.Errorf("a record of kind %q does not belong here", r.Kind)
	case r.Conv == "" || r.Seq < 1 || r.Entry == "":
		return errors.New("a row without conversation, seq or entry kind")
	case r.Entry == entryMessage && (r.Sender == "" || r.CMID == "" || (r.Hash == "") != (r.Name == history.Gone)):
		return errors.New("a message without sender, client message id or hash, or with the hash of a content that is gone")
	}
	l.h.rows = append(l.h.rows, row{mid: r.MID, seq: r.Seq, prev: r.Prev, conv: id(r.Conv), sender: id(r.Sender), cmid: id(r.CMID),
		hash: id(r.Hash), entry: id(r.Entry), at: p})
	return nil
}

func (l *loader) span(r *history.Record, p at) error {
	if r.Kind != history.Span || r.User == "" || r.Conv == "" {
		return fmt.Errorf("a record of kind %q, or one without user or conversation, does not belong here", r.Kind)
	}
	l.h.spans = append(l.h.spans, span{seq: r.Seq, to: r.To, user: l.h.names.id(r.User), conv: l.h.names.id(r.Conv), at: p})
	return nil
}

func (l *loader) fault(r *history.Record, p at) error {
	if r.Kind != history.Fault || r.Name == "" {
		return fmt.Errorf("a record of kind %q, or one without name, does not belong here", r.Kind)
	}
	l.h.faults = append(l.h.faults, fault{t: r.T, name: l.h.names.id(r.Name), at: p, stop: r.Stop, aside: r.Entry == history.Aside})
	return nil
}

func (l *loader) act(kinds []history.Kind, r *history.Record, p at) error {
	id := l.h.names.id
	a := act{t: r.T, to: r.To, n: r.N, seq: r.Seq, kind: r.Kind, user: id(r.User), device: id(r.Device), entry: id(r.Entry), name: id(r.Name),
		reason: id(r.Reason), prev: r.Prev, login: id(r.Sender), list: id(r.Hash), at: p, ack: acks[r.Ack], stop: r.Stop, was: r.Dup}
	switch {
	case !slices.Contains(kinds, r.Kind):
		return fmt.Errorf("a record of kind %q does not belong here", r.Kind)
	case r.Kind != history.Etcd && r.Kind != history.Put && r.User == "" && r.Name != history.RouteForget:
		return fmt.Errorf("a %s without a node or user", r.Kind)
	case slices.Contains(answered, r.Kind) && a.ack == ackNone:
		return fmt.Errorf("a %s with the unknown answer %q", r.Kind, r.Ack)
	case (r.Kind == history.Login || r.Kind == history.Logout) && (r.Device == "" || r.Entry == "" || r.Name == ""):
		return fmt.Errorf("a %s without device, session or login", r.Kind)
	case r.Kind == history.Sight && r.Device == "":
		return errors.New("a sight of nobody")
	case r.Kind == history.Route && !slices.Contains(routeNames, r.Name):
		return fmt.Errorf("a call to a route store with the unknown name %q", r.Name)
	case r.Kind == history.Seen && r.Device == "":
		return errors.New("something was seen without a node")
	}
	if r.Kind == history.Made {
		a.n = r.MID
	}
	l.h.acts = append(l.h.acts, a)
	return nil
}

// done checks that all parts are there.
func (l *loader) done(run history.Run, where string) (*History, error) {
	h := l.h
	h.Run = run
	missing := func(what string) error { return fmt.Errorf("%w: %s has no %s", ErrNothing, where, what) }
	switch {
	case len(h.ops) == 0:
		return nil, missing("sends (*.ops)")
	case len(h.views) == 0:
		return nil, missing("views (*.view)")
	case len(h.rows) == 0:
		return nil, missing("final log (db.final)")
	case len(h.spans) == 0:
		return nil, missing("members (members.final)")
	case run.Healed != 0 && len(h.faults) == 0:
		return nil, missing("faults (faults.log), yet run.json says they ended")
	case run.Healed == 0 && len(h.faults) != 0:
		return nil, missing("time when the last fault was over (run.json: healed), yet there were faults")
	case run.Ended <= 0 || run.Ended < run.Healed:
		return nil, missing("time when it ended after healing (run.json: ended)")
	}
	switch run.Allocator {
	case allocTransaction, allocSegment:
	default:
		return nil, fmt.Errorf("%w: %s: run.json names the unknown allocator %q", ErrNothing, where, run.Allocator)
	}
	return h, nil
}

// The allocators of run.json.
const (
	allocTransaction = "transaction"
	allocSegment     = "segment"
)

// Ref is a record and where it stands.
type Ref struct {
	File   string         `json:"file"`
	Line   int            `json:"line"` // from 1; 0 = not from a file
	Record history.Record `json:"record"`
}

func (h *History) ref(p at, r history.Record) Ref {
	if p.line == 0 {
		return Ref{"(made)", 0, r}
	}
	return Ref{h.files[p.file], int(p.line), r}
}

func (h *History) opRef(o *op) Ref {
	text := h.names.text
	kind := history.Return
	if o.ack == ackNone {
		kind = history.Invoke
	}
	return h.ref(o.at, history.Record{T: o.t, Kind: kind, User: text(o.user), Device: text(o.device), Conv: text(o.conv), CMID: text(o.cmid),
		N: o.n, Hash: text(o.hash), Ack: ackNames[o.ack], Reason: text(o.reason), MID: o.mid, Seq: o.seq, Prev: o.prev, Dup: o.dup})
}

func (h *History) viewRef(v *view) Ref {
	text := h.names.text
	r := history.Record{T: v.t, Kind: viewNames[v.kind], User: text(v.user), Device: text(v.device), Conv: text(v.conv), MID: v.mid, Seq: v.seq,
		Sender: text(v.sender), Hash: text(v.hash)}
	if v.kind == viewShow {
		r.Entry = text(v.word)
	} else {
		r.Name = text(v.word)
	}
	return h.ref(v.at, r)
}

func (h *History) rowRef(r *row) Ref {
	text := h.names.text
	return h.ref(r.at, history.Record{Kind: history.Row, Conv: text(r.conv), CMID: text(r.cmid), Hash: text(r.hash), MID: r.mid, Seq: r.seq,
		Prev: r.prev, Sender: text(r.sender), Entry: text(r.entry)})
}

func (h *History) spanRef(s *span) Ref {
	return h.ref(s.at, history.Record{Kind: history.Span, User: h.names.text(s.user), Conv: h.names.text(s.conv), Seq: s.seq, To: s.to})
}

func (h *History) actRef(a *act) Ref {
	text := h.names.text
	r := history.Record{T: a.t, Kind: a.kind, User: text(a.user), Device: text(a.device), Ack: ackNames[a.ack], Reason: text(a.reason), Seq: a.seq,
		To: a.to, Entry: text(a.entry), Name: text(a.name), Stop: a.stop, Prev: a.prev, Sender: text(a.login), Hash: text(a.list), Dup: a.was}
	if a.kind == history.Made {
		r.MID = a.n
	} else {
		r.N = a.n
	}
	return h.ref(a.at, r)
}
