package status

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// StatsStatus is what the leader of the schedulers counted in the cluster.
type StatsStatus struct {
	At     *time.Time `json:"at"`     // when, by its clock; none = no leader has told yet
	Leader string     `json:"leader"` // node
	// Users are those shown as online; none = not known.
	Users    *int64           `json:"users"`
	Sessions map[string]int64 `json:"sessions"` // by device class
	Nodes    []NodeStats      `json:"nodes"`
	Minutes  []MinuteStats    `json:"minutes"` // by time; the last one is not over
}

// NodeStats is one node.
type NodeStats struct {
	Node     string           `json:"node_id"`
	Silent   string           `json:"silent,omitempty"` // why it told nothing; "" = it did
	Gateway  bool             `json:"gateway"`          // it has one; else nothing follows
	Sessions map[string]int64 `json:"sessions"`         // by device class
	Users    int64            `json:"users"`            // with sessions there
}

// MinuteStats is one minute of the whole cluster.
type MinuteStats struct {
	At        time.Time `json:"at"` // its beginning
	Messages  int64     `json:"messages"`
	Delivered int64     `json:"delivered"`
	// Sessions and Users are as they were last counted in this minute; none = not
	// known.
	Sessions map[string]int64 `json:"sessions"`
	Users    *int64           `json:"users"`
}

// statsOf is a Tally as it is shown.
func statsOf(t *v1.Tally) StatsStatus {
	out := StatsStatus{Sessions: map[string]int64{}, Nodes: []NodeStats{}, Minutes: []MinuteStats{}}
	if t == nil {
		return out
	}
	at := time.UnixMilli(t.AtMs).UTC()
	out.At, out.Leader = &at, t.NodeId
	for _, n := range t.Nodes {
		one := NodeStats{n.NodeId, n.Silent, n.Gateway, map[string]int64{}, n.Users}
		for class, c := range n.Sessions {
			one.Sessions[class] = c
			out.Sessions[class] += c
		}
		out.Nodes = append(out.Nodes, one)
	}
	for _, m := range t.Minutes {
		one := MinuteStats{At: time.Unix(m.Minute*60, 0).UTC(), Messages: m.Stored, Delivered: m.Delivered, Users: m.Users}
		if m.Counted {
			one.Sessions = maps.Clone(m.Sessions)
			if one.Sessions == nil {
				one.Sessions = map[string]int64{}
			}
		}
		out.Minutes = append(out.Minutes, one)
	}
	if n := len(out.Minutes); n > 0 {
		out.Users = out.Minutes[n-1].Users
	}
	return out
}

// stats is the page of what the leader counted.
func (d Deps) stats(*http.Request) (any, Page) {
	s := statsOf(d.Tally())
	p := Page{Title: "statistics: no leader has counted yet"}
	if s.At != nil {
		p.Title = fmt.Sprintf("statistics of %s, counted by %s", when(*s.At), s.Leader)
		p.Plots = plots(s.Minutes)
	}
	classes := ClassesOf(s)
	rows := [][]string{append([]string{"all", optional(s.Users), fmt.Sprint(sum(s.Sessions))}, cells(s.Sessions, classes)...)}
	for _, n := range s.Nodes {
		switch {
		case n.Silent != "":
			rows = append(rows, append([]string{n.Node, "silent: " + n.Silent, ""}, make([]string, len(classes))...))
		case n.Gateway:
			rows = append(rows, append([]string{n.Node, fmt.Sprint(n.Users), fmt.Sprint(sum(n.Sessions))}, cells(n.Sessions, classes)...))
		}
	}
	var minutes [][]string
	for _, m := range slices.Backward(s.Minutes) {
		known := ""
		if m.Sessions != nil {
			known = fmt.Sprint(sum(m.Sessions))
		}
		minutes = append(minutes, []string{m.At.Format("15:04"), optional(m.Users), known, fmt.Sprint(m.Messages), fmt.Sprint(m.Delivered)})
	}
	p.Tables = []Table{
		{"connected", append([]string{"node", "users", "sessions"}, classes...), rows},
		{"by minute", []string{"minute (UTC)", "users", "sessions", "messages", "deliveries"}, minutes},
	}
	return s, p
}

// ClassesOf lists the device classes that have sessions somewhere.
func ClassesOf(s StatsStatus) []string {
	seen := map[string]bool{}
	for _, n := range s.Nodes {
		for class := range n.Sessions {
			seen[class] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// plots draw the minutes.
func plots(minutes []MinuteStats) []Plot {
	draw := func(caption string, value func(MinuteStats) int64) Plot {
		p := Plot{Caption: caption}
		for _, m := range minutes {
			p.Bars = append(p.Bars, Bar{m.At.Format("15:04"), value(m)})
		}
		return p
	}
	return []Plot{
		draw("messages a minute", func(m MinuteStats) int64 { return m.Messages }),
		draw("deliveries a minute", func(m MinuteStats) int64 { return m.Delivered }),
		draw("users online", func(m MinuteStats) int64 {
			if m.Users == nil {
				return -1
			}
			return *m.Users
		}),
		draw("sessions", func(m MinuteStats) int64 {
			if m.Sessions == nil {
				return -1
			}
			return sum(m.Sessions)
		}),
	}
}

func sum(by map[string]int64) (n int64) {
	for _, c := range by {
		n += c
	}
	return n
}

func cells(by map[string]int64, classes []string) []string {
	out := make([]string, len(classes))
	for i, c := range classes {
		out[i] = fmt.Sprint(by[c])
	}
	return out
}

// optional is a number that may not be known; "" then.
func optional(n *int64) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
