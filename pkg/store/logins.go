package store

import (
	"maps"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// LoginTTL is how long a route store remembers a login after it claimed a place or
// was seen there: no token of it lives longer.
const LoginTTL = 24 * time.Hour

// Login is what a route store remembers of a login that claimed under KickOld, also
// while it has no session, so that a newer one replaces it then too.
type Login struct {
	Class im.Class  `json:"class"`
	Epoch uint64    `json:"epoch"` // route epoch of its last claim
	Until time.Time `json:"until"` // then it is forgotten
}

// Logins are those that are remembered of one user. Under KickOld there is one of
// each class, or one in all, beside those that began without the store.
type Logins map[im.LoginID]Login

// Claim says what a granted claim of next does to the logins: those that it replaces
// are forgotten, and next's is remembered. away are the replaced ones that have no
// route among have, sorted. l is not changed. A policy other than KickOld does
// nothing.
func (l Logins) Claim(have []Route, next Route, p Policy, now time.Time) (after Logins, away []im.LoginID) {
	if p.Mode != KickOld {
		return l, nil
	}
	after = Logins{next.Login: {next.Class, next.Epoch, now.Add(LoginTTL)}}
	for _, id := range slices.Sorted(maps.Keys(l)) {
		switch o := l[id]; {
		case id == next.Login || !now.Before(o.Until):
		case p.SameClass && o.Class != next.Class || o.Epoch > next.Epoch:
			after[id] = o
		case !slices.ContainsFunc(have, func(h Route) bool { return h.Login == id }):
			away = append(away, id)
		}
	}
	return after, away
}

// Seen remembers a login for longer, because it has a session. false = there is
// nothing to change: it is not remembered, or for long enough. l is not changed.
func (l Logins) Seen(id im.LoginID, now time.Time) (Logins, bool) {
	o, ok := l[id]
	if !ok || now.Before(o.Until.Add(-LoginTTL/2)) {
		return l, false
	}
	after := maps.Clone(l)
	o.Until = now.Add(LoginTTL)
	after[id] = o
	return after, true
}
