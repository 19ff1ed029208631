package gateway

import (
	"fmt"
	"net/http"

	"github.com/imdhq/imd/pkg/status"
)

// Status is what the gateway of a process holds.
type Status struct {
	Connections int    `json:"connections"` // open ones, authenticated or not
	Sessions    int    `json:"sessions"`
	Users       int    `json:"users"` // with sessions here
	Sockets     int64  `json:"plain_sockets"`
	Requests    int    `json:"requests_in_work"`
	Waiting     int    `json:"requests_waiting"` // for their turn
	State       string `json:"state"`            // serving, draining or stopping
}

// page tells what the gateway holds; nothing about single users.
func (g *Gateway) page(*http.Request) (any, status.Page) {
	s := Status{Sockets: int64(g.sockets.waits()), Requests: g.requests.busy(), Waiting: g.requests.waits() + g.syncs.waits(), State: "serving"}
	s.Connections, s.Sessions, s.Users = g.hub.counts()
	switch {
	case g.closing.Load():
		s.State = "stopping"
	case g.draining.Load():
		s.State = "draining"
	}
	return s, status.Page{Title: "gateway", Tables: []status.Table{{Columns: []string{"", ""}, Rows: [][]string{
		{"state", s.State}, {"connections", fmt.Sprint(s.Connections)}, {"sessions", fmt.Sprint(s.Sessions)}, {"users", fmt.Sprint(s.Users)},
		{"sockets without a session", fmt.Sprint(s.Sockets)}, {"requests in work", fmt.Sprint(s.Requests)}, {"requests that wait", fmt.Sprint(s.Waiting)},
	}}}}
}
