//go:build drill

package gateway

import (
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
)

// lateBy is how much too late a known-bad build subscribes.
const lateBy = 500 * time.Millisecond

// subscribe makes the session findable, so that from now on deliveries reach
// it; in the known-bad build read-before-subscribe only after its first sync
// was read.
func (s *session) subscribe() {
	if !failpoint.Bad(failpoint.ReadBeforeSubscribe) {
		s.g.hub.register(s)
		return
	}
	time.AfterFunc(lateBy, func() {
		if s.live() {
			s.g.hub.register(s)
		}
	})
}
