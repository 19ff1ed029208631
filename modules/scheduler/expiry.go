package scheduler

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
)

// expireAfter is how long what is over stays. It is passed by as soon as it is
// over; but where the clock was ahead for a while, what it took for over is needed
// again afterwards, such as the revocation of a token that is still good.
const expireAfter = 24 * time.Hour

// expire is one round: all that has been over for long goes, step by step.
func (s *Scheduler) expire(ctx context.Context, t control.Term) error {
	st, err := s.Store()
	if err != nil {
		return err
	}
	all := 0
	for {
		failpoint.HitJob("expire")
		n, err := st.Expire(ctx, t.Proof(), time.Now().Add(-expireAfter))
		if err != nil {
			return err
		}
		s.expired.Add(float64(n))
		if all += n; n < store.MaxExpire {
			s.Log.Info("what had expired was removed", zap.Int("removed", all), zap.Int64("token", t.Proof().Token))
			return nil
		}
	}
}
