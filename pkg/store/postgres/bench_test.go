package postgres

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// BenchmarkAppend measures a message of 128 bytes, in conversations of two, on a server that keeps what it acknowledges. It reports
// the processor time of the server and of this process for each message, and
// what a message takes on the disk.
func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{20, 100} {
		for _, convs := range []int{200, 10_000} {
			b.Run(fmt.Sprintf("rows=%d/conversations=%d", batch, convs), func(b *testing.B) { benchAppend(b, batch, convs) })
		}
	}
}

func benchAppend(b *testing.B, batch, convs int) {
	server := testenv.StartPostgres(b, testenv.PostgresOptions{Settings: []string{"fsync=on", "shared_buffers=256MB", "max_wal_size=4GB", "autovacuum=on"}})
	dsn := fresh(b, server)
	s := openAt(b, dsn)
	defer s.Close()
	text := make([]byte, 128)
	serial := 0
	rows := func(rng *rand.Rand, first int) []store.AppendRow {
		out := make([]store.AppendRow, batch)
		for i := range out {
			from, peer := fmt.Sprintf("user-%d", rng.IntN(convs)), ""
			peer = from + "-b"
			n := first + i
			out[i] = store.AppendRow{
				Run: i, Conversation: im.ConversationID(protocol.DirectID(from, peer)), Sender: im.UserID(from), Peer: im.UserID(peer),
				ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-%04x-4000-8000-%012x", rng.Uint32(), n&0xffff, rng.Uint64()&0xffffffffffff)),
				BodyHash:        sha256.Sum256(text), MessageID: im.MessageID(n + 1), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE,
				Content: text, Countable: true,
			}
		}
		return out
	}
	load := func(total int) {
		var wg sync.WaitGroup
		for w := range s.Writers() {
			base := serial + w*total
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(base), uint64(w)))
				for n := 0; n < total/s.Writers(); n += batch {
					for _, r := range mustAppend(b, s, rows(rng, base+n)...) {
						if r.Duplicate {
							b.Error("a duplicate")
						}
					}
				}
			})
		}
		wg.Wait()
		serial += s.Writers() * total
	}
	load(4 * max(convs, 1000)) // conversations and plans are made
	admin := connectTo(b, dsn)
	size := func() (heap, index, rows int64) {
		err := admin.QueryRow(b.Context(), `SELECT sum(pg_relation_size(inhrelid)), sum(pg_indexes_size(inhrelid)), (SELECT sum(head) FROM conversation)
		  FROM pg_inherits WHERE inhparent = 'entry'::regclass`).Scan(&heap, &index, &rows)
		if err != nil {
			b.Fatal(err)
		}
		return heap, index, rows
	}
	theirs, ours := server.CPU(), cpu(b)
	b.ResetTimer()
	load(max(b.N, 2*batch))
	b.StopTimer()
	n := float64(max(b.N, 2*batch))
	b.ReportMetric(float64((server.CPU()-theirs).Microseconds())/n, "server-us/op")
	b.ReportMetric(float64((cpu(b)-ours).Microseconds())/n, "client-us/op")
	b.ReportMetric(n/b.Elapsed().Seconds(), "messages/s")
	heap, index, total := size()
	b.ReportMetric(float64(heap)/float64(total), "heap-B/message")
	b.ReportMetric(float64(index)/float64(total), "index-B/message")
}

// cpu is the processor time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRetain measures what it costs that old messages go.
func BenchmarkRetain(b *testing.B) {
	server := testenv.StartPostgres(b, testenv.PostgresOptions{Settings: []string{"fsync=on", "shared_buffers=256MB", "autovacuum=on"}})
	s := openAt(b, fresh(b, server))
	defer s.Close()
	storetest.BenchmarkRetain(b, s)
}

// BenchmarkResume measures a resume where nothing has changed.
func BenchmarkResume(b *testing.B) {
	s := openAt(b, fresh(b, testenv.SharedPostgres(b)))
	defer s.Close()
	storetest.BenchmarkResume(b, s)
}
