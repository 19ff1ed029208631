package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Bounds of the text report: it stays one page.
const (
	textViolations = 3 // of each invariant
	textRecords    = 6 // of each violation
)

// Text writes the report as one page for a terminal.
func (r *Report) Text(w io.Writer) {
	fmt.Fprintf(w, "%s\n\n", r.Verdict())
	r.textFacts(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "\nINVARIANT\t\tCHECKED\tVIOLATIONS")
	for _, inv := range r.Invariants {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", inv.ID, inv.Title, inv.Checked, inv.state())
	}
	_ = tw.Flush()
	for _, inv := range r.Invariants {
		if inv.Note != "" {
			fmt.Fprintf(w, "%s: %s\n", inv.ID, inv.Note)
		}
	}
	for _, inv := range r.Invariants {
		inv.text(w)
	}
}

// Verdict is the report in one sentence.
func (r *Report) Verdict() string {
	but := ""
	if r.Counts.Undecided > 0 {
		but = fmt.Sprintf("; %d searches for a linear order ran out of time", r.Counts.Undecided)
	}
	if idle := r.Idle(); len(idle) > 0 {
		but += "; nothing to check for " + strings.Join(idle, ", ")
	}
	if r.Good {
		return fmt.Sprintf("good: no violation in %d records%s", r.Counts.Records, but)
	}
	return fmt.Sprintf("bad: %s in %d records%s", violations(r.Found()), r.Counts.Records, but)
}

func violations(n int) string {
	if n == 1 {
		return "1 violation"
	}
	return fmt.Sprintf("%d violations", n)
}

func (r *Report) textFacts(w io.Writer) {
	c, a := &r.Counts, &r.Availability
	fmt.Fprintf(w, "run           %.1f s from %s, seed %d, server %s, allocator %s\n", r.Run.Seconds, r.Run.Began, r.Run.Seed, r.Run.Server, r.Run.Allocator)
	healed := "no faults"
	if c.Faults > 0 {
		healed = fmt.Sprintf("%d faults, healed at %.1f s", c.Faults, r.Run.HealedAt)
	}
	fmt.Fprintf(w, "faults        %s\n", healed)
	fmt.Fprintf(w, "sends         %d: %d acknowledged, %d refused, %d given up; %d answers retry, %d unknown, %d duplicate\n",
		c.Sends, c.Acked, c.Refused, c.GivenUp, c.Retries, c.Unknown, c.Duplicates)
	fmt.Fprintf(w, "log           %d rows in %d conversations, %d messages, %d of senders that were not recorded\n", c.Rows, c.Conversations, c.Messages, c.Unrecorded)
	fmt.Fprintf(w, "devices       %d of %d users, %d settled; %d shows, %d connects, %d resyncs\n", c.Devices, c.Users, c.Settled, c.Shows, c.Connects, c.Resyncs)
	if c.Processes > 0 {
		fmt.Fprintf(w, "control       %d processes told what they saw; %d effects of %d leaders, %d changes of settings, %d ids\n", c.Processes, c.Effects, c.Leaders, c.Puts, c.Made)
	}
	if c.Logins+c.RouteCalls > 0 {
		fmt.Fprintf(w, "who is where  %d logins, %d calls to the route store, %d sights\n", c.Logins, c.RouteCalls, c.Sights)
	}
	fmt.Fprintf(w, "availability  %.2f %% of %d sends outside fault windows within %v (wanted %.2f %%), %d inside\n",
		100*a.Share, a.Judged, Prompt, 100*a.Wanted, a.Excused)
	fmt.Fprintf(w, "waits         p50 %s, p99 %s, longest %s, longest outside fault windows %s\n", ms(a.P50), ms(a.P99), ms(a.Longest), ms(a.LongestFree))
	if len(a.Classes) == 0 {
		return
	}
	var none []string
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\nUNDER\tFAULTS\tSENDS\tWITHIN %v\tP99\tLONGEST\n", Prompt)
	for _, k := range a.Classes {
		if k.Sends == 0 {
			none = append(none, k.Name)
			continue
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%s\t%s\t%s\n", k.Title(), k.Faults, k.Sends, k.Part(), ms(k.P99), ms(k.Longest))
	}
	_ = tw.Flush()
	if len(none) > 0 {
		fmt.Fprintf(w, "no sends under these alone: %s\n", strings.Join(none, ", "))
	}
}

// state is what stands in the last column.
func (inv *Invariant) state() string {
	switch {
	case inv.Found > 0:
		return fmt.Sprint(inv.Found)
	case inv.Checked == 0:
		return "nothing to check"
	}
	return "-"
}

func (inv *Invariant) text(w io.Writer) {
	if inv.Found == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s, %s: %s\n", inv.ID, inv.Title, violations(inv.Found))
	for _, v := range inv.Violations[:min(len(inv.Violations), textViolations)] {
		fmt.Fprintf(w, "  %s\n", v.Text)
		for _, ref := range v.Records[:min(len(v.Records), textRecords)] {
			fmt.Fprintf(w, "    %s  %s\n", ref.Where(), ref.JSON())
		}
	}
	if more := inv.Found - textViolations; more > 0 {
		fmt.Fprintf(w, "  and %d more\n", more)
	}
}

// Where is the file and line of a record.
func (r Ref) Where() string {
	if r.Line == 0 {
		return r.File
	}
	return fmt.Sprintf("%s:%d", r.File, r.Line)
}

// JSON is the record as its file has it, but for the order of fields.
func (r Ref) JSON() string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r.Record); err != nil {
		return err.Error()
	}
	return strings.TrimSpace(b.String())
}
