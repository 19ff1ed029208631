package balance

import (
	"slices"
	"time"
)

// Outcome is what a call said about the node that got it.
type Outcome int

// The outcomes.
const (
	// OK: the node answered. Refusals count: who can refuse is well.
	OK Outcome = iota
	// Failed: no answer in time, or one that says that the node cannot work.
	Failed
	// Unreachable: there is no connection.
	Unreachable
	// Gone: the caller went away first. It says nothing.
	Gone
)

// Parameters of the ejection.
const (
	ejectAfter  = 3 // failures in a row
	firstPause  = 100 * time.Millisecond
	longestRest = 30 * time.Second
)

// Standing is what an Ejector holds of a node.
type Standing string

// The standings.
const (
	// Used: it gets calls.
	Used Standing = "used"
	// Ejected: it is left out until its pause is over.
	Ejected Standing = "ejected"
	// Probing: its pause is over, and one probe decides.
	Probing Standing = "probing"
)

// Ejector leaves nodes out that fail. A node is
//
//	used -> ejected   unreachable, or the third failure in a row; unless half of
//	                  the nodes would be out then: it is probably the caller
//	ejected -> probing  the pause is over: 100 ms, doubled each time to 30 s
//	probing -> used   the probe was answered
//	probing -> ejected  it was not
//
// A node that was well for as long as the longest pause begins with the
// shortest again. The zero value knows no nodes. Not safe for concurrent use.
type Ejector struct {
	nodes map[string]*ejection
	out   int // nodes that are not used
	Count Counts
}

// Counts is what an Ejector has done since it was made.
type Counts struct {
	Ejected  uint64
	Returned uint64
	Spared   uint64 // ejections that the bound of one half forbade
}

type ejection struct {
	standing Standing
	fails    int
	pause    time.Duration // the last one; 0 = none yet
	until    time.Time     // end of the pause
	back     time.Time     // when it was used again
}

// Set says which nodes there are; what is known of others is forgotten.
func (e *Ejector) Set(ids []string) {
	next := make(map[string]*ejection, len(ids))
	e.out = 0
	for _, id := range ids {
		n := e.nodes[id]
		if n == nil {
			n = &ejection{standing: Used}
		}
		if n.standing != Used && next[id] == nil {
			e.out++
		}
		next[id] = n
	}
	e.nodes = next
	for _, id := range ids { // fewer nodes: half of them may be fewer than are out
		if e.out <= len(e.nodes)/2 {
			break
		}
		if e.nodes[id].standing != Used {
			e.nodes[id] = &ejection{standing: Used}
			e.out--
		}
	}
}

// Report takes in how a call at a node ended, also that of a probe. It returns
// true if the node is left out from now on.
func (e *Ejector) Report(id string, o Outcome, now time.Time) bool {
	n := e.nodes[id]
	if n == nil || o == Gone {
		return false
	}
	if o == OK {
		n.fails = 0
		if n.standing == Probing {
			n.standing, n.back = Used, now
			e.out--
			e.Count.Returned++
		}
		return false
	}
	n.fails++
	switch {
	case n.standing == Probing:
		n.rest(now)
		n.standing = Ejected
		return false
	case n.standing == Ejected, o == Failed && n.fails < ejectAfter:
		return false
	case e.out+1 > len(e.nodes)/2:
		e.Count.Spared++
		n.fails = 0
		return false
	}
	if now.Sub(n.back) > longestRest {
		n.pause = 0
	}
	n.rest(now)
	n.standing = Ejected
	e.out++
	e.Count.Ejected++
	return true
}

func (n *ejection) rest(now time.Time) {
	n.pause = min(max(2*n.pause, firstPause), longestRest)
	n.until = now.Add(n.pause)
}

// Usable reports whether the node may get calls.
func (e *Ejector) Usable(id string) bool {
	n := e.nodes[id]
	return n != nil && n.standing == Used
}

// Standing is what is held of the node; "" = unknown.
func (e *Ejector) Standing(id string) Standing {
	if n := e.nodes[id]; n != nil {
		return n.standing
	}
	return ""
}

// Out is how many nodes are left out.
func (e *Ejector) Out() int { return e.out }

// Due lists the nodes whose pause is over, by ID, and marks them: the caller
// probes each once and reports how it went.
func (e *Ejector) Due(now time.Time) []string {
	var out []string
	for id, n := range e.nodes {
		if n.standing == Ejected && !now.Before(n.until) {
			n.standing = Probing
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}
