package outbox

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/testenv"
)

const (
	benchUsers = 64  // conversations that messages are in
	benchBatch = 100 // messages of one commit
	benchEvery = 20 * time.Millisecond
	benchBeat  = 10 // messages of a commit beside a receiver that hangs
)

// onBoth runs a benchmark on each message store.
func onBoth(b *testing.B, bench func(b *testing.B, s *site)) {
	b.Run("embedded", func(b *testing.B) { bench(b, newSite(b, yes)) })
	b.Run("postgres", func(b *testing.B) {
		dsn := testenv.StartPostgres(b, testenv.PostgresOptions{Settings: []string{"fsync=on", "shared_buffers=256MB"}}).Database(b)
		if _, err := postgres.Migrate(b.Context(), dsn); err != nil {
			b.Fatal(err)
		}
		st, err := postgres.Open(b.Context(), postgres.Options{DSN: dsn})
		if err != nil {
			b.Fatal(err)
		}
		bench(b, newSiteOn(b, st, yes))
	})
}

// rows are the next n messages, one after the other to each user.
func (s *site) rows(n int) []store.AppendRow {
	rows := make([]store.AppendRow, n)
	for i := range rows {
		rows[i], _ = s.message(im.UserID(fmt.Sprint("u", i%benchUsers)))
	}
	return rows
}

// taken waits until a receiver has taken n.
func (r *receiver) taken(n int) {
	for end := time.Now().Add(time.Minute); r.requests() < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%d of %d requests came", r.requests(), n)
		}
	}
}

// Webhooks told to one receiver on the same machine, from the marks of commits to
// the last answer.
func BenchmarkTold(b *testing.B) {
	onBoth(b, func(b *testing.B, s *site) {
		s.warm()
		for part := range slices.Chunk(s.rows(b.N), benchBatch) {
			s.commit(part...)
		}
		b.ResetTimer()
		s.lead(fault{})
		s.hooks.taken(b.N)
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "webhooks/s")
		s.hooks.ordered()
	})
}

// The time from the commit to the receiver, at 500 messages a second, beside one
// that never answers.
func BenchmarkToldBesideOneThatHangs(b *testing.B) {
	onBoth(b, func(b *testing.B, s *site) {
		s.add("hangs", newReceiver(b, func(told) int { return 0 }))
		s.warm()
		s.lead(fault{})
		for part := range slices.Chunk(s.rows(b.N), benchBeat) {
			s.commit(part...)
			time.Sleep(benchEvery)
		}
		s.hooks.taken(b.N)
		var late []float64
		for _, one := range s.hooks.distinct() {
			late = append(late, float64(one.at.Sub(one.Time).Milliseconds()))
		}
		slices.Sort(late)
		for _, p := range []int{50, 99, 100} {
			b.ReportMetric(late[(len(late)-1)*p/100], "p"+strconv.Itoa(p)+"-ms")
		}
	})
}
