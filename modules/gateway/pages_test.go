package gateway

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A page that is answered again and again is encoded once, each answer carries the
// id of its request, and what the client decodes is the same as ever.
func TestPagesAreEncodedOnce(t *testing.T) {
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		var p pages
		one, other := &clientv1.HistoryResult{ConversationId: "g_1", Page: &clientv1.Page{CompleteTo: 300, End: true}}, &clientv1.HistoryResult{ConversationId: "g_2", Page: &clientv1.Page{}}
		for i := range int64(300) { // more than one byte of length
			one.Page.Entries = append(one.Page.Entries, &clientv1.Entry{Seq: i + 1, PrevSeq: i, Sender: "ann"})
		}
		for _, r := range []*clientv1.HistoryResult{one, other} {
			for _, id := range []uint32{7, 0, 1, 127, 128, 1 << 31} {
				data, err := p.frame(enc, id, r)
				if err != nil {
					t.Fatal(err)
				}
				n := 0
				err = protocol.DecodeServerEnvelope(enc, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
					if n++; f.Id != id || !proto.Equal(f.GetHistoryResult(), r) {
						return fmt.Errorf("another frame: %v", f)
					}
					return nil
				})
				if err != nil || n != 1 {
					t.Errorf("%v, id %d: %d frames, %v", enc, id, n, err)
				}
			}
			again := &clientv1.HistoryResult{ConversationId: r.ConversationId, Page: r.Page}
			if allocs := testing.AllocsPerRun(100, func() { _, _ = p.frame(enc, 9, again) }); allocs > 4 {
				t.Errorf("%v: %v allocations for a page that is there", enc, allocs)
			}
		}
		for range 2 * pagesKept {
			if _, err := p.frame(enc, 1, &clientv1.HistoryResult{Page: &clientv1.Page{}}); err != nil {
				t.Fatal(err)
			}
		}
		if p.again(one.Page) != nil {
			t.Error("a page is remembered for ever")
		}
	}
}
