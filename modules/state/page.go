package state

import (
	"fmt"
	"net/http"

	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/status"
)

// LanesStatus is what waits in the state role of a process.
type LanesStatus struct {
	Lanes   []lane.Report `json:"lanes"`
	Fanout  int           `json:"fanout_items"` // items that wait to be handed to push
	Bytes   int           `json:"fanout_bytes"`
	Piles   []PileStatus  `json:"piles"`
	Leaving bool          `json:"leaving,omitempty"` // calls are refused; other nodes take over
}

// PileStatus is what waits for one push node.
type PileStatus struct {
	Node  string `json:"node"` // "" = this process, or the only one
	Items int    `json:"items"`
	Busy  bool   `json:"busy"` // a call is out
}

// page tells of the lanes and of what is handed to push.
func (s *State) page(*http.Request) (any, status.Page) {
	out := LanesStatus{Lanes: []lane.Report{}, Piles: []PileStatus{}, Leaving: s.leaving.Load()}
	var lanes, piles [][]string
	if c := s.core.Load(); c != nil {
		for i, l := range c.lanes {
			r := l.report()
			out.Lanes = append(out.Lanes, r)
			lanes = append(lanes, []string{fmt.Sprint(i), fmt.Sprint(r.Queued), fmt.Sprint(r.Bytes), fmt.Sprint(r.Out), fmt.Sprint(r.Reruns),
				fmt.Sprint(r.Held), fmt.Sprintf("%.0f", r.Rate)})
		}
		out.Fanout, out.Bytes, out.Piles = c.fanout.report()
		for _, p := range out.Piles {
			piles = append(piles, []string{p.Node, fmt.Sprint(p.Items), fmt.Sprint(p.Busy)})
		}
	}
	return out, status.Page{Title: "lanes", Tables: []status.Table{
		{Columns: []string{"lane", "queued", "bytes", "out", "reruns", "held conversations", "rows/s"}, Rows: lanes},
		{Caption: fmt.Sprintf("to push: %d items, %d bytes", out.Fanout, out.Bytes), Columns: []string{"node", "items", "call out"}, Rows: piles},
	}}
}
