package etcd

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// record is a route as it is stored.
type record struct {
	Login  im.LoginID  `json:"login"`
	Device im.DeviceID `json:"device"`
	Class  im.Class    `json:"class"`
	Node   im.NodeID   `json:"node"`
	Boot   string      `json:"boot"`
	Epoch  uint64      `json:"epoch"`
	Since  time.Time   `json:"since"`
}

// guard is what every change of a user's routes compares and writes.
type guard struct {
	Top       uint64                          `json:"top"` // the highest route epoch that was given out
	Displaced map[im.SessionID]store.Standing `json:"displaced,omitempty"`
	Order     []im.SessionID                  `json:"order,omitempty"` // of Displaced, the oldest first
	// Logins are remembered longer than any process lives: a guard that has some is
	// on a lease of its own.
	Logins store.Logins `json:"logins,omitempty"`
}

// maxDisplaced is how many sessions a guard remembers.
const maxDisplaced = 32

// displace notes why sessions lost their routes.
func (g *guard) displace(routes []store.Route, why store.Standing) {
	for _, r := range routes {
		if g.Displaced == nil {
			g.Displaced = map[im.SessionID]store.Standing{}
		}
		g.Displaced[r.Session] = why
		g.Order = append(g.Order, r.Session)
	}
	for len(g.Order) > maxDisplaced {
		delete(g.Displaced, g.Order[0])
		g.Order = g.Order[1:]
	}
}

// Keys of a user, below the prefix of the store: USER/guard and
// USER/session/SESSION, both escaped.
func (r *Routes) userPrefix(u im.UserID) string { return r.prefix + url.PathEscape(string(u)) + "/" }
func (r *Routes) guardKey(u im.UserID) string   { return r.userPrefix(u) + "guard" }
func (r *Routes) routeKey(u im.UserID, s im.SessionID) string {
	return r.userPrefix(u) + "session/" + url.PathEscape(string(s))
}

// split reads a key; session is "" for a guard.
func (r *Routes) split(key string) (user im.UserID, session im.SessionID, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, r.prefix), "/")
	u, err := url.PathUnescape(parts[0])
	if err != nil {
		return "", "", false
	}
	switch {
	case len(parts) == 2 && parts[1] == "guard":
		return im.UserID(u), "", true
	case len(parts) == 3 && parts[1] == "session":
		s, err := url.PathUnescape(parts[2])
		return im.UserID(u), im.SessionID(s), err == nil && s != ""
	}
	return "", "", false
}

func encode(x store.Route) string {
	b, _ := json.Marshal(record{x.Login, x.Device, x.Class, x.Node, x.Boot, x.Epoch, x.Since}) // plain fields: it cannot fail
	return string(b)
}

func decode(user im.UserID, session im.SessionID, value []byte) (store.Route, error) {
	var c record
	if err := json.Unmarshal(value, &c); err != nil {
		return store.Route{}, fmt.Errorf("a route of %s: %w", user, err)
	}
	return store.Route{User: user, Session: session, Login: c.Login, Device: c.Device, Class: c.Class, Node: c.Node, Boot: c.Boot,
		Epoch: c.Epoch, Since: c.Since}, nil
}
