package verify

import (
	"cmp"
	"fmt"
	"slices"
)

// complete is I7: a device that has settled after the last fault shows every
// message that its user may see, from where the device began; and what any
// device shows is what the log holds. A device that is online in the end and
// has not settled was left behind.
//
// What settled means is bounded in time: a message that nobody can have seen
// stored before the device settled may still be under way.
func (c *check) complete() {
	list, wide := c.stories()
	c.match(list)
	stories := make(map[place]*story, len(list))
	for i := range list {
		stories[list[i].place] = &list[i]
	}
	spans := map[name][]name{} // the conversations of each user
	for k := range c.visible() {
		spans[k[0]] = append(spans[k[0]], k[1])
	}
	offline := 0
	for _, d := range devices(wide) {
		settled := c.settled(wide[d])
		if settled == never {
			if v := c.online(wide[d]); v != nil {
				c.fail(refs(c.viewRef(v)), "a device is online in the end, but never settled after the last fault")
			} else {
				offline++
			}
			continue
		}
		slices.Sort(spans[d.user])
		for _, conv := range spans[d.user] {
			p := place{d.user, d.device, conv}
			s := stories[p]
			if s == nil {
				s = &story{place: p, wide: wide[d]}
			}
			c.missing(s, settled)
		}
	}
	if offline > 0 {
		c.inv.Note = fmt.Sprintf("%d devices that are offline in the end are judged only by what they showed", offline)
	}
}

// devices gives the devices in a fixed order.
func devices(wide map[device][]uint32) []device {
	all := make([]device, 0, len(wide))
	for d := range wide {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b device) int { return cmp.Or(cmp.Compare(a.user, b.user), cmp.Compare(a.device, b.device)) })
	return all
}

// settled is when a device last settled after healing, or never.
func (x *index) settled(wide []uint32) int64 {
	for _, i := range slices.Backward(wide) {
		if v := &x.views[i]; v.kind == viewSettled {
			if v.t < x.Run.Healed {
				break
			}
			return v.t
		}
	}
	return never
}

// online is the record by which a device is online in the end, or nil.
func (x *index) online(wide []uint32) *view {
	for _, i := range slices.Backward(wide) {
		switch v := &x.views[i]; v.kind {
		case viewDisconnect:
			return nil
		case viewConnect, viewSettled:
			return v
		}
	}
	return nil
}

// match compares everything that was shown with the log.
func (c *check) match(list []story) {
	for i := range list {
		for _, at := range list[i].own {
			v := &c.views[at]
			if v.kind != viewShow {
				continue
			}
			c.inv.Checked++
			p, ok := c.find(v.conv, v.seq)
			if !ok {
				c.fail(refs(c.viewRef(v)), "seq %d was shown, but the final log has none", v.seq)
				continue
			}
			r := &c.rows[c.rowOrder[p]]
			if v.mid != 0 && v.mid != r.mid || v.hash != 0 && r.hash != 0 && v.hash != r.hash || v.sender != 0 && v.sender != r.sender || v.word != r.entry {
				c.fail(refs(c.viewRef(v), c.rowRef(r)), "seq %d was shown as another message than the log holds", v.seq)
			}
		}
	}
}

// life is what a device showed of a conversation between two resyncs.
type life struct {
	base  int64 // it began with everything up to here
	begun bool
	shown []int64
}

// lifeAt is the life in which the device settled.
func (c *check) lifeAt(s *story, settled int64) life {
	var l life
	for v := range c.told(s) {
		switch v.kind {
		case viewResync:
			if v.t > settled {
				return l
			}
			l = life{}
		case viewOpen:
			if !l.begun {
				l.base, l.begun = v.seq, true
			}
		case viewHave:
			l.begun = true // too late for an Open
		case viewShow:
			l.begun = true
			l.shown = append(l.shown, v.seq)
		}
	}
	return l
}

// missing finds the messages that a settled device should show and does not. What
// has gone may have gone before the device asked for it.
func (c *check) missing(s *story, settled int64) {
	order, convs := c.ordered()
	known, e, l := c.known(), convs[s.conv], c.lifeAt(s, settled)
	if !slices.IsSorted(l.shown) { // the order itself is I8's
		slices.Sort(l.shown)
	}
	spans, next := c.visible()[[2]name{s.user, s.conv}], 0
	for i := e.lo; i < e.hi; i++ {
		r := &c.rows[order[i]]
		if r.entry != nameMessage || r.hash == 0 || r.seq <= l.base || !maySee(spans, r.seq) {
			continue
		}
		c.inv.Checked++
		for next < len(l.shown) && l.shown[next] < r.seq {
			next++
		}
		if next < len(l.shown) && l.shown[next] == r.seq || c.late(known[i], r, settled) {
			continue
		}
		c.fail(func() []Ref { return c.around(s, r) }, "device %s of %s never showed seq %d of %s",
			c.names.text(s.device), c.names.text(s.user), r.seq, c.names.text(s.conv))
	}
}

// late reports whether a message may have been stored after the device settled.
// What nobody saw at all is late only if it had not left by then.
func (c *check) late(known int64, r *row, settled int64) bool {
	if known != never {
		return known > settled
	}
	if c.left == nil {
		c.left = c.sendKeys()
	}
	s := c.left[key{r.conv, r.sender, r.cmid}]
	return s != nil && s.invoked != never && s.invoked > settled
}

// around gives the row and what the device showed last before it.
func (c *check) around(s *story, r *row) []Ref {
	var before *view
	for v := range c.told(s) {
		if (v.kind == viewShow || v.kind == viewOpen || v.kind == viewHave) && v.seq < r.seq {
			before = v
		}
	}
	list := []Ref{c.rowRef(r)}
	if before != nil {
		list = append(list, c.viewRef(before))
	}
	for i := range c.sendList {
		if t := &c.sendList[i]; t.row >= 0 && &c.rows[t.row] == r {
			return append(list, c.refsOf(t)...)
		}
	}
	return list
}
