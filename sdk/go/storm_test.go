package imd

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// crowd is many clients of one server, and when each of them dialled.
type crowd struct {
	f       *fakeServer
	clients []*Client

	mu    sync.Mutex
	up    time.Time // before it nobody is let in
	dials [][]time.Time
}

func newCrowd(t *testing.T, f *fakeServer, n int) *crowd {
	c := &crowd{f: f, dials: make([][]time.Time, n)}
	for i := range n {
		o := f.options(fmt.Sprint("u", i))
		o.dial = func(ctx context.Context) (transport, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.dials[i] = append(c.dials[i], time.Now())
			if time.Now().Before(c.up) {
				return nil, lost("refused")
			}
			return f.dial(ctx)
		}
		c.clients = append(c.clients, connect(t, o))
	}
	synctest.Wait()
	return c
}

// cut ends all connections at once; nobody is let in for a while.
func (c *crowd) cut(away time.Duration) (at time.Time) {
	at = time.Now()
	c.mu.Lock()
	c.up = at.Add(away)
	for i := range c.dials {
		c.dials[i] = nil
	}
	c.mu.Unlock()
	c.f.each(func(s *fakeSession) { s.conn.close(0) })
	return at
}

// steps calls check for each client with its pauses since the cut.
func (c *crowd) steps(at time.Time, check func(client int, pauses []time.Duration)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, list := range c.dials {
		pauses := make([]time.Duration, len(list))
		for n, d := range list {
			pauses[n] = d.Sub(at)
			if n > 0 {
				pauses[n] = d.Sub(list[n-1])
			}
		}
		check(i, pauses)
	}
}

// busiest is how many clients dialled within one tenth of a second, at most.
func (c *crowd) busiest() (most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.SortedFunc(slices.Values(slices.Concat(c.dials...)), time.Time.Compare)
	for i, first := 0, 0; i < len(all); i++ {
		for all[i].Sub(all[first]) >= 100*time.Millisecond {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// A server that was restarted finds its clients coming one after the other, each
// after a random pause that grows while it is away, and all of them in the end.
func TestAStormOfClients(t *testing.T) {
	const many = 1000
	bubble(t, func(t *testing.T, f *fakeServer) {
		c := newCrowd(t, f, many)
		time.Sleep(15 * time.Second)
		const away = 2 * time.Second
		at := c.cut(away)
		time.Sleep(away + backoffMax + time.Second) // who came just before the end may draw the longest pause
		synctest.Wait()
		first := 0
		c.steps(at, func(i int, pauses []time.Duration) {
			if c.clients[i].State() != Online {
				t.Errorf("client %d is %v", i, c.clients[i].State())
			}
			for n, p := range pauses {
				if p >= backoffCap(n) {
					t.Errorf("client %d paused for %v before attempt %d", i, p, n)
				}
			}
			if pauses[0] < 100*time.Millisecond {
				first++
			}
		})
		// A fifth of them has a first pause below 100 ms, and a tenth of a second sees 200
		// of them for the first and 90 for the second time, give or take 20.
		if first < many/10 || first > many*3/10 {
			t.Errorf("%d of %d came in the first tenth of a second", first, many)
		}
		if most := c.busiest(); most > many*2/5 {
			t.Errorf("%d of %d came within a tenth of a second", most, many)
		}
	})
}

// Who is told when to come back comes then; its own pauses do not grow by that.
func TestAStormThatIsSentAway(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		c := newCrowd(t, f, 200)
		time.Sleep(15 * time.Second)
		told := func(user string) uint32 { return 500 + uint32(len(user)*331+int(user[len(user)-1])*97)%1000 }
		refused := map[string]int{}
		f.mu.Lock()
		f.refuseHello = func(h *clientv1.Hello) *clientv1.Bye {
			switch refused[h.Token]++; refused[h.Token] {
			case 1:
				return protocol.NewBye("busy", "", time.Duration(told(h.Token))*time.Millisecond)
			case 2:
				return protocol.NewBye("busy", "", 0)
			}
			return nil
		}
		f.mu.Unlock()
		at := c.cut(0)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		c.steps(at, func(i int, pauses []time.Duration) {
			want := time.Duration(told(fmt.Sprint("u", i))) * time.Millisecond
			if len(pauses) != 3 || pauses[0] >= backoffCap(0) || pauses[1] != want || pauses[2] >= backoffCap(1) || c.clients[i].State() != Online {
				t.Errorf("client %d, told %v, paused for %v and is %v", i, want, pauses, c.clients[i].State())
			}
		})
	})
}
