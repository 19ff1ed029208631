package verify

import (
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// What is allowed to announcements, outside the time of faults.
const (
	// NoticeLate is how late an announcement may be shown by a device that is online; the time
	// of faults is counted, as a run ends well behind them.
	NoticeLate = 10 * time.Second
	// NoticeStale is how long after its end an announcement may still be shown.
	NoticeStale = 3 * time.Second
)

// proclaimed is an announcement and its end.
type proclaimed struct {
	*deed
	withdrawn *deed // nil = it was not taken back, as far as anybody knows
}

// proclamations are the announcements whose number is known. lost says that there may
// be others.
func (x *index) proclamations() (by map[int64]*proclaimed, lost bool) {
	by = map[int64]*proclaimed{}
	for _, d := range x.deedsOf(history.Announce) {
		if lost = lost || d.ack == ackUnknown; d.ack == ackOK {
			by[d.n] = &proclaimed{deed: d}
		}
	}
	for _, d := range x.deedsOf(history.Withdraw) {
		if p := by[d.n]; p != nil && (p.withdrawn == nil || p.withdrawn.ack != ackOK) {
			p.withdrawn = d
		}
	}
	return by, lost
}

// lasts reports whether every device that is online at a time must have shown it.
func (p *proclaimed) lasts(at int64) bool {
	return p.withdrawn == nil && p.seq > at && p.to+int64(NoticeLate) < at
}

// announced: each announcement is shown at most once by a device, in their order, with
// its text, and not for long after its end; one that lasts by every device that listens.
// It tells how much was judged.
func (c *check) announced() string {
	by, lost := c.proclamations()
	faults := c.troubled()
	last := map[[3]name]*deed{} // by user, device and data_epoch
	shown := map[device]map[int64]bool{}
	for _, d := range c.deedsOf(history.Notice) {
		c.inv.Checked++
		at, who := [3]name{d.user, d.device, d.name}, device{d.user, d.device}
		if before := last[at]; before != nil && before.n >= d.n {
			c.fail(refs(c.deedRef(before), c.deedRef(d)), "an announcement was shown twice, or after a later one")
			continue
		}
		last[at] = d
		if shown[who] == nil {
			shown[who] = map[int64]bool{}
		}
		shown[who][d.n] = true
		c.proclaimed(d, by[d.n], lost, faults)
	}
	listeners := c.deedsOf(history.Listener)
	for _, l := range listeners {
		for _, p := range by {
			if !p.lasts(l.t) {
				continue
			}
			if c.inv.Checked++; !shown[device{l.user, l.device}][p.n] {
				c.fail(refs(c.deedRef(p.deed), c.deedRef(l)), "an announcement was never shown by a device that listens")
			}
		}
	}
	if len(by) == 0 {
		return ""
	}
	return fmt.Sprintf("%d announcements for %d devices that listen", len(by), len(listeners))
}

// proclaimed judges what a device showed.
func (c *check) proclaimed(d *deed, p *proclaimed, lost bool, faults [][2]int64) {
	late := func(end int64) bool { return d.t > end && d.t-end-within(faults, end, d.t) > int64(NoticeStale) }
	switch {
	case p == nil && !lost:
		c.fail(refs(c.deedRef(d)), "a device showed an announcement that nobody made")
	case p == nil:
	case p.hash != d.hash:
		c.fail(refs(c.deedRef(p.deed), c.deedRef(d)), "an announcement was shown with another text")
	case d.t < p.t:
		c.fail(refs(c.deedRef(p.deed), c.deedRef(d)), "an announcement was shown before it was made")
	case late(p.seq):
		c.fail(refs(c.deedRef(p.deed), c.deedRef(d)), "an announcement was shown after its end")
	case p.withdrawn != nil && p.withdrawn.ack == ackOK && late(p.withdrawn.to):
		c.fail(refs(c.deedRef(p.withdrawn), c.deedRef(d)), "an announcement was shown after it was taken back")
	}
}
