package settings

import (
	"fmt"
	"maps"
	"slices"
)

// Record is a document as etcd holds it.
type Record struct {
	Section string
	Version int64 // of the key: 1 at its creation, then one more with each write
	Mod     int64 // revision of its last write
	Raw     []byte
}

// Event is what the core can be told.
type Event interface{ event() }

// Read is a full read of all documents.
type Read struct {
	Revision int64
	Cluster  uint64 // id of the etcd cluster
	Records  []Record
	// Restored says that the driver has found etcd with another or an older history;
	// else a read that is behind is believed only when it is the third in a row.
	Restored bool
}

// Changed is all changes of one revision.
type Changed struct {
	Revision int64
	Puts     []Record
	Deletes  []string // sections
}

// Reached says that nothing has changed up to a revision.
type Reached struct{ Revision int64 }

// Check is a full read at a revision that was reached before, to compare.
type Check struct {
	Revision int64
	Records  []Record
}

// Remembered is what was in force before the process began. It holds until the
// first read, and after it where that holds something that cannot be taken.
type Remembered struct {
	Revision int64
	Records  []Record
}

func (Read) event()       {}
func (Remembered) event() {}
func (Changed) event()    {}
func (Reached) event()    {}
func (Check) event()      {}

// Effects is what a step asks for.
type Effects struct {
	Publish *Snapshot // nil = nothing new is in force
	Reread  string    // why everything must be read again, one of Causes; "" = no need
}

// The causes of a full read.
const (
	CauseGap      = "gap"      // an event is missing
	CauseDrift    = "drift"    // a check found a difference
	CauseBehind   = "behind"   // the read was from a member that lags
	CauseRestored = "restored" // etcd has another or an older history; the read was taken
)

// stubborn is how many reads in a row must be behind before etcd is believed to
// have gone back.
const stubborn = 3

// held is a document with its place in etcd.
type held struct {
	version, mod int64
	raw          string
	doc          Document
	bad          error // raw is no document; doc is empty
}

// refusal is why the newest document of a section is not in force.
type refusal struct {
	revision int64
	reason   string
}

// State is what a node knows about the settings. It is a value: Step makes a
// new one. The zero value is not ready; use NewState.
type State struct {
	reg *Registry
	who Identity

	cluster uint64
	head    int64 // newest revision seen
	synced  bool  // head, known and the watch that follows belong together
	behind  int   // reads in a row that were behind
	known   map[string]held
	taken   map[string]held
	applied int64 // revision of the newest change in force
	refused map[string]refusal
	counts  Counts
}

// Counts are totals since the process began.
type Counts struct {
	Gaps     uint64 // missed events that a version gave away
	Drift    uint64 // checks that found a difference; 0 in a healthy cluster
	Refused  uint64 // revisions that were not taken
	Applied  uint64 // revisions that were
	Restored uint64 // times that etcd had another history
}

// NewState is the state before anything was read.
func NewState(reg *Registry, who Identity) State { return State{reg: reg, who: who} }

// Applied is the revision of the newest change in force; 0 = none.
func (s State) Applied() int64 { return s.applied }

// Head is the newest revision of etcd that the state has taken into account.
func (s State) Head() int64 { return s.head }

// Refused is the newest revision that was not taken although its documents are
// still there, with the reason; 0 = none.
func (s State) Refused() (revision int64, reason string) {
	for _, section := range slices.Sorted(maps.Keys(s.refused)) {
		if r := s.refused[section]; r.revision > revision {
			revision, reason = r.revision, r.reason
		}
	}
	return revision, reason
}

// Step takes in one event.
func (s State) Step(ev Event) (State, Effects) {
	switch ev := ev.(type) {
	case Read:
		return s.read(ev)
	case Changed:
		return s.changed(ev)
	case Reached:
		if s.synced {
			s.head = max(s.head, ev.Revision)
		}
		return s, Effects{}
	case Check:
		return s.check(ev)
	case Remembered:
		return s.remember(ev)
	}
	panic(fmt.Sprintf("settings: event %T", ev))
}

// read takes a full read, unless it is older than what is known.
func (s State) read(ev Read) (State, Effects) {
	var eff Effects
	fresh := s.known == nil
	if fresh {
		s.applied = 0 // what was remembered may be of another cluster
	}
	if !fresh && (ev.Cluster != s.cluster || ev.Revision < s.head) {
		if !ev.Restored && ev.Cluster == s.cluster && s.behind+1 < stubborn {
			s.behind++
			s.synced = false
			return s, Effects{Reread: CauseBehind}
		}
		s.counts.Restored++
		s.applied, eff.Reread = 0, CauseRestored
	}
	s.behind, s.synced, s.cluster, s.head = 0, true, ev.Cluster, ev.Revision
	before := s.known
	s.known = make(map[string]held, len(ev.Records))
	groups := map[int64][]string{} // sections by the revision of their last write
	steps := false                 // changes may have been missed; what was refused stays so
	for _, r := range ev.Records {
		h := hold(r)
		s.known[r.Section] = h
		if _, bad := s.refused[r.Section]; bad && before[r.Section].mod == h.mod && before[r.Section].raw == h.raw {
			steps = true
			continue
		}
		groups[r.Mod] = append(groups[r.Mod], r.Section)
	}
	var gone []string
	for section := range s.taken {
		if _, ok := s.known[section]; !ok {
			gone = append(gone, section)
		}
	}
	next, pub := s.settle(ev.Revision, gone, groups, steps, false)
	if pub || fresh || eff.Reread != "" {
		eff.Publish = next.publish()
	}
	if eff.Reread == CauseRestored {
		eff.Reread = "" // it was taken; there is nothing more to read
	}
	return next, eff
}

func hold(r Record) held {
	h := held{version: r.Version, mod: r.Mod, raw: string(r.Raw)}
	h.doc, h.bad = decode(r.Raw)
	return h
}

// changed takes the changes of one revision.
func (s State) changed(ev Changed) (State, Effects) {
	if !s.synced || ev.Revision <= s.head {
		return s, Effects{}
	}
	known := maps.Clone(s.known)
	var gone, put []string
	for _, section := range ev.Deletes {
		if _, ok := known[section]; !ok {
			return s.gap()
		}
		delete(known, section)
		gone = append(gone, section)
	}
	for _, r := range ev.Puts {
		if r.Version != known[r.Section].version+1 { // 1 if it was not there
			return s.gap()
		}
		known[r.Section] = hold(r)
		put = append(put, r.Section)
	}
	s.known, s.head = known, ev.Revision
	next, pub := s.settle(ev.Revision, gone, map[int64][]string{ev.Revision: put}, true, true)
	if !pub {
		return next, Effects{}
	}
	return next, Effects{Publish: next.publish()}
}

// gap notes that an event is missing. Nothing counts until the next read.
func (s State) gap() (State, Effects) {
	s.counts.Gaps++
	s.synced = false
	return s, Effects{Reread: CauseGap}
}

// remember takes what was in force once, if it still is good for this binary.
func (s State) remember(ev Remembered) (State, Effects) {
	if s.known != nil || s.taken != nil {
		return s, Effects{}
	}
	taken := make(map[string]held, len(ev.Records))
	for _, r := range ev.Records {
		taken[r.Section] = hold(r)
	}
	if s.try(taken, false) != nil {
		return s, Effects{}
	}
	s.taken, s.applied = taken, ev.Revision
	return s, Effects{Publish: s.publish()}
}

// InForce lists the documents in force, to be remembered.
func (s State) InForce() Remembered {
	m := Remembered{Revision: s.applied}
	for _, section := range slices.Sorted(maps.Keys(s.taken)) {
		h := s.taken[section]
		m.Records = append(m.Records, Record{Section: section, Version: h.version, Mod: h.mod, Raw: []byte(h.raw)})
	}
	return m
}

// check compares a read with what is known at its revision.
func (s State) check(ev Check) (State, Effects) {
	if !s.synced || ev.Revision != s.head {
		return s, Effects{}
	}
	read := make(map[string]held, len(ev.Records))
	for _, r := range ev.Records {
		read[r.Section] = hold(r)
	}
	if same(read, s.known) {
		return s, Effects{}
	}
	s.counts.Drift++
	s.synced = false
	return s, Effects{Reread: CauseDrift}
}

// settle takes as much of what is known as is good: all of it; else the groups
// of sections one by one, as wholes, by rising revision. all and each say
// whether steps are judged for the one and the other.
func (s State) settle(rev int64, gone []string, groups map[int64][]string, all, each bool) (State, bool) {
	if err := s.try(s.known, all); err == nil {
		took := !same(s.taken, s.known)
		s.taken, s.refused = s.known, nil
		s.note(rev, gone, took)
		return s, took
	}
	took := false
	if len(gone) > 0 {
		next := maps.Clone(s.taken)
		for _, section := range gone {
			delete(next, section)
		}
		s, took = s.attempt(rev, gone, next, each)
	}
	for _, mod := range slices.Sorted(maps.Keys(groups)) {
		next := maps.Clone(s.taken)
		if next == nil {
			next = map[string]held{}
		}
		for _, section := range groups[mod] {
			next[section] = s.known[section]
		}
		if same(s.taken, next) {
			continue
		}
		var ok bool
		s, ok = s.attempt(mod, groups[mod], next, each)
		took = took || ok
	}
	return s, took
}

// attempt takes next if it is good, and notes why not.
func (s State) attempt(rev int64, sections []string, next map[string]held, steps bool) (State, bool) {
	s.refused = maps.Clone(s.refused)
	if s.refused == nil {
		s.refused = map[string]refusal{}
	}
	err := s.try(next, steps)
	for _, section := range sections {
		if err == nil {
			delete(s.refused, section)
			continue
		}
		if s.refused[section].revision != rev {
			s.refused[section] = refusal{rev, err.Error()}
		}
	}
	if err != nil {
		s.counts.Refused++
		return s, false
	}
	s.taken = next
	s.note(rev, nil, true)
	return s, true
}

// note moves the applied revision up to that of the newest change in force.
func (s *State) note(rev int64, gone []string, took bool) {
	if took {
		s.counts.Applied++
	}
	if len(gone) > 0 {
		s.applied = max(s.applied, rev)
	}
	for _, h := range s.taken {
		s.applied = max(s.applied, h.mod)
	}
}

// try judges a set of documents against those in force.
func (s State) try(next map[string]held, steps bool) error {
	for _, section := range slices.Sorted(maps.Keys(next)) {
		if err := next[section].bad; err != nil {
			return fmt.Errorf("section %s %w", section, err)
		}
	}
	return s.reg.judge(contents(s.taken), contents(next), steps)
}

func contents(m map[string]held) docs {
	out := make(docs, len(m))
	for section, h := range m {
		out[section] = h.doc
	}
	return out
}

func same(a, b map[string]held) bool {
	return maps.EqualFunc(a, b, func(x, y held) bool { return x.mod == y.mod && x.raw == y.raw })
}

func (s State) publish() *Snapshot {
	return s.reg.snapshot(s.applied, contents(s.taken), s.who)
}
