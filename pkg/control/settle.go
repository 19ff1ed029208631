package control

import (
	"context"
	"time"
)

// Quiet is how long a view must stay the same before work that a change makes,
// such as building a ring, is worth doing once for a whole wave of changes.
const Quiet = 300 * time.Millisecond

// Settled waits for a view with another serial, and then until no new one has
// come for quiet, or for ten times that. It gives the latest view, also when ctx
// ends.
func (h *Handle) Settled(ctx context.Context, serial uint64, quiet time.Duration) *View {
	v := h.Next(ctx, serial)
	if ctx.Err() != nil || v.Serial == serial {
		return v
	}
	all, cancelAll := context.WithTimeout(ctx, 10*quiet)
	defer cancelAll()
	for all.Err() == nil {
		one, cancel := context.WithTimeout(all, quiet)
		next := h.Next(one, v.Serial)
		cancel()
		if next.Serial == v.Serial {
			return v
		}
		v = next
	}
	return v
}
