package sqlite

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// BenchmarkAppend stores batches of 100 rows of 128 bytes, spread over 1,000
// direct conversations or in a single one, each batch flushed to the disk.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1000, 1} {
		b.Run(fmt.Sprintf("conversations=%d", n), func(b *testing.B) { benchAppend(b, n, 100) })
	}
	b.Run("batch=1", func(b *testing.B) { benchAppend(b, 1000, 1) })
}

func benchAppend(b *testing.B, conversations, batch int) {
	s, err := Open(b.Context(), Options{Path: filepath.Join(b.TempDir(), "imd.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	convs, users := make([]im.ConversationID, conversations), make([]im.UserID, conversations)
	for i := range convs {
		users[i] = im.UserID(fmt.Sprintf("user-%d", i))
		convs[i] = im.ConversationID(protocol.DirectID("alice", string(users[i])))
	}
	content := make([]byte, 128)
	next := 0
	rows := func() []store.AppendRow {
		out := make([]store.AppendRow, batch)
		for i := range out {
			next++
			binary.BigEndian.PutUint64(content, uint64(next))
			c := rand.IntN(conversations)
			out[i] = store.AppendRow{
				Conversation: convs[c], Peer: users[c], Sender: "alice", MessageID: im.MessageID(next),
				ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-%04x-4000-8000-%012x", rand.Uint32(), next&0xffff, next)),
				BodyHash:        sha256.Sum256(content), Content: content, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Countable: true,
			}
		}
		return out
	}
	for b.Loop() {
		b.StopTimer()
		r := rows()
		b.StartTimer()
		if _, err := s.Append(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
	n := float64(b.N * batch)
	b.ReportMetric(n/b.Elapsed().Seconds(), "messages/s")
	b.ReportMetric(float64(b.Elapsed().Microseconds())/n, "us/message")
}

// BenchmarkRetain measures what it costs that old messages go.
func BenchmarkRetain(b *testing.B) {
	s, err := Open(b.Context(), Options{Path: filepath.Join(b.TempDir(), "imd.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	storetest.BenchmarkRetain(b, s)
}

// BenchmarkResume measures a resume where nothing has changed.
func BenchmarkResume(b *testing.B) {
	s, err := Open(b.Context(), Options{Path: filepath.Join(b.TempDir(), "imd.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	storetest.BenchmarkResume(b, s)
}
