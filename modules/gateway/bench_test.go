package gateway

import (
	"fmt"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// BenchmarkPairs sends from 50 sessions to 50 others, 8 sends outstanding each,
// with a state that only counts: what a message costs here, both clients
// included.
func BenchmarkPairs(b *testing.B) {
	w := begin(b)
	w.g.Limits().SetOff(true)
	const pairs, outstanding = 50, 8
	d := dialer{w, b.Context()}
	var senders []*websocket.Conn
	var wg sync.WaitGroup
	for i := range pairs {
		from, to := fmt.Sprint("a", i), fmt.Sprint("b", i)
		ws, _, err := d.open(w.token(from), "d")
		if err != nil {
			b.Fatal(err)
		}
		senders = append(senders, ws)
		rx, _, err := d.open(w.token(to), "d")
		if err != nil {
			b.Fatal(err)
		}
		defer rx.CloseNow()
		rx.SetReadLimit(protocol.ClientReadLimit)
		wg.Go(func() {
			conv, last, n := protocol.DirectID(from, to), int64(0), 0
			for {
				_, data, err := rx.Read(b.Context())
				if err != nil {
					return
				}
				_ = protocol.DecodeServerEnvelope(protocol.JSON, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
					if e := f.GetDeliver().GetEntries(); len(e) > 0 && n%32 == 0 {
						ack, _ := protocol.EncodeClient(protocol.JSON, ackOf(conv, last, e[0].Seq))
						last = e[0].Seq
						_ = rx.Write(b.Context(), websocket.MessageText, ack)
					}
					n++
					return nil
				})
			}
		})
	}
	b.ResetTimer()
	var tx sync.WaitGroup
	for i, ws := range senders {
		tx.Go(func() {
			defer ws.CloseNow()
			room := make(chan struct{}, outstanding)
			total := b.N / pairs
			var rx sync.WaitGroup
			rx.Go(func() {
				for got := 0; got < total; {
					_, data, err := ws.Read(b.Context())
					if err != nil {
						b.Error(err)
						return
					}
					_ = protocol.DecodeServerEnvelope(protocol.JSON, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
						if f.GetSendAck() != nil {
							got++
							<-room
						}
						return nil
					})
				}
			})
			to := fmt.Sprint("b", i)
			for n := range total {
				room <- struct{}{}
				s := testenv.ToUser(to, "a message of a usual length, that is, one short sentence and a half, as people write them to each other")
				s.ClientMessageId = uuidOf(i*1_000_000 + n)
				data, _ := protocol.EncodeClient(protocol.JSON, sendOf(uint32(n+1), s))
				if err := ws.Write(b.Context(), websocket.MessageText, data); err != nil {
					b.Error(err)
					return
				}
			}
			rx.Wait()
		})
	}
	tx.Wait()
	b.StopTimer()
	w.stop()
	wg.Wait()
}
