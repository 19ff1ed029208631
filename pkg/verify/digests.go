package verify

import "fmt"

// digests is I20: the digest of heads that a sync came with is that of what syncs
// have told the device. If it is not, one of them left something out.
func (c *check) digests() {
	for i := range c.views {
		v := &c.views[i]
		if !v.digest() {
			continue
		}
		c.inv.Checked++
		if v.kind == viewDiffers {
			c.fail(refs(c.viewRef(v)), "syncs have not told device %s of %s of all heads", c.names.text(v.device), c.names.text(v.user))
		}
	}
}

// digest reports whether a view is about a digest.
func (v view) digest() bool { return v.kind == viewDigest || v.kind == viewDiffers }

// untoldHead makes a digest another than that of what syncs told.
func (m *mutant) untoldHead() string {
	at, ok := choose(m.rng, func(yield func(int) bool) {
		for i := range m.views {
			if m.views[i].kind == viewDigest && !yield(i) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	own(&m.views)[at].kind = viewDiffers
	return fmt.Sprintf("a digest of %s on %s", m.names.text(m.views[at].user), m.names.text(m.views[at].device))
}
