package store

import (
	"cmp"
	"slices"

	"github.com/imdhq/imd/pkg/im"
)

// Admit decides what a claim does to the routes that its user has. next has its
// epoch. It returns what is displaced and what stays beside next; ok is false if
// the policy refuses the newcomer. If next itself has been displaced, the claim
// says so and everything stays. have is not changed. It is what every driver
// does, whatever it is written in.
func Admit(have []Route, next Route, p Policy) (c Claim, keep []Route, ok bool) {
	c.Epoch = next.Epoch
	for _, h := range have {
		if h.Login == next.Login && h.Device == next.Device && h.Session != next.Session && h.Epoch > next.Epoch {
			c.Standing = Superseded
			return c, have, true
		}
	}
	ended := rivals(have, next, p)
	if p.Mode == RejectNew && len(ended) > 0 {
		for _, h := range have {
			if ended[h.Login] {
				c.Holders = append(c.Holders, h)
			}
		}
		return c, have, false
	}
	if ended[next.Login] {
		c.Standing = Replaced
		return c, have, true
	}
	for _, h := range have {
		switch {
		case h.Session == next.Session:
			// the same socket claims again: its former claim is void, and nobody is told
		case h.Login == next.Login && h.Device == next.Device:
			c.Superseded = append(c.Superseded, h)
		case ended[h.Login]:
			c.Replaced = append(c.Replaced, h)
		default:
			keep = append(keep, h)
		}
	}
	return c, keep, true
}

// rank is one login of a user.
type rank struct {
	login          im.LoginID
	oldest, newest uint64 // epochs of its routes
}

// rivals are the logins that cannot live beside next. next's own is among them
// if newer ones have displaced it.
func rivals(have []Route, next Route, p Policy) map[im.LoginID]bool {
	ended := map[im.LoginID]bool{}
	switch others := ranks(have, next, p.SameClass); p.Mode {
	case KickOld:
		for _, o := range others {
			if o.newest > next.Epoch {
				return map[im.LoginID]bool{next.Login: true}
			}
			ended[o.login] = true
		}
	case RejectNew:
		for _, o := range others {
			ended[o.login] = true
		}
	default:
		beyond(ranks(have, next, true), have, next, p.Multi, ended)
	}
	if p.Mode == RejectNew && p.Total > 0 {
		all := ranks(have, next, false)
		if len(all) >= p.Total {
			for _, o := range all {
				ended[o.login] = true
			}
		}
		return ended
	}
	var left []rank
	for _, o := range ranks(have, next, false) {
		if !ended[o.login] {
			left = append(left, o)
		}
	}
	beyond(left, have, next, p.Total, ended)
	return ended
}

// ranks are the logins other than next's, of its class or of any.
func ranks(have []Route, next Route, sameClass bool) []rank {
	var out []rank
	for _, h := range have {
		if h.Login == next.Login || sameClass && h.Class != next.Class {
			continue
		}
		i := slices.IndexFunc(out, func(r rank) bool { return r.login == h.Login })
		if i < 0 {
			out = append(out, rank{h.Login, h.Epoch, h.Epoch})
			continue
		}
		out[i].oldest, out[i].newest = min(out[i].oldest, h.Epoch), max(out[i].newest, h.Epoch)
	}
	return out
}

// beyond ends the oldest of the logins so that n are left with next's; n below 1
// = no bound. next's own login ends only if it has no route yet.
func beyond(others []rank, have []Route, next Route, n int, ended map[im.LoginID]bool) {
	if n < 1 || len(others) < n {
		return
	}
	count := len(others) + 1 - n
	if !slices.ContainsFunc(have, func(h Route) bool { return h.Login == next.Login }) {
		others = append(others, rank{next.Login, next.Epoch, next.Epoch})
	}
	slices.SortFunc(others, func(a, b rank) int { return cmp.Compare(a.oldest, b.oldest) })
	for _, o := range others[:count] {
		ended[o.login] = true
	}
}
