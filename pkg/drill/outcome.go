package drill

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/verify"
)

// Outcome is what a drill found.
type Outcome struct {
	Good       bool             `json:"good"` // no violation, and no node ended by itself
	Seed       uint64           `json:"seed"`
	Layout     string           `json:"layout"` // its name or file
	Allocator  string           `json:"allocator"`
	Kinds      []Kind           `json:"kinds"`
	Seconds    float64          `json:"seconds"` // of the load
	Took       float64          `json:"took_s"`  // the whole drill
	Planned    int              `json:"faults_planned"`
	Begun      int              `json:"faults"`
	Operations int64            `json:"operations"`
	Failures   map[string]int64 `json:"failures,omitempty"`    // of operations and connections, by reason
	Leaders    map[string]int   `json:"leaders_hit,omitempty"` // in the middle of which job, or of none
	Excused    int              `json:"excused_exits"`         // of nodes, under faults that may end them
	Crashes    []string         `json:"crashes,omitempty"`     // of nodes, without such a fault
	Troubles   []string         `json:"troubles,omitempty"`    // faults that did not take place as they should
	Dir        string           `json:"dir"`                   // "" = removed
	Verdict    *verify.Report   `json:"verdict"`
}

// Text writes the outcome as one page for a terminal.
func (o *Outcome) Text(w io.Writer) {
	verdict := "good"
	if !o.Good {
		verdict = "bad"
	}
	fmt.Fprintf(w, "%s: %d faults in %.0f s of load, %d operations, layout %s, allocator %s, seed %d\n", verdict, o.Begun, o.Seconds, o.Operations, o.Layout, o.Allocator, o.Seed)
	fmt.Fprintf(w, "kinds: %s\n", names(o.Kinds))
	if o.Excused > 0 {
		fmt.Fprintf(w, "%d times a node ended under a fault that may end it\n", o.Excused)
	}
	if len(o.Leaders) > 0 {
		var all []string
		for _, where := range slices.Sorted(maps.Keys(o.Leaders)) {
			all = append(all, fmt.Sprintf("%s %d", where, o.Leaders[where]))
		}
		fmt.Fprintf(w, "leaders were hit in the middle of: %s\n", strings.Join(all, ", "))
	}
	for _, c := range slices.Concat(o.Crashes, o.Troubles) {
		fmt.Fprintln(w, c)
	}
	if len(o.Failures) > 0 {
		var all []string
		for _, reason := range slices.Sorted(maps.Keys(o.Failures)) {
			all = append(all, fmt.Sprintf("%s %d", reason, o.Failures[reason]))
		}
		fmt.Fprintf(w, "what clients met: %s\n", strings.Join(all, ", "))
	}
	fmt.Fprintln(w)
	o.Verdict.Text(w)
	if o.Dir != "" {
		fmt.Fprintf(w, "\nhistory and logs: %s\n", o.Dir)
	}
	if !o.Good {
		fmt.Fprintf(w, "again: imd drill replay %d --layout %s --allocator %s --faults %s --minutes %g\n", o.Seed, o.Layout, o.Allocator, names(o.Kinds), o.Seconds/60)
	}
}
