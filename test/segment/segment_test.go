package segment

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/ring"
)

// pauseTime is how long a paused owner stays away.
func pauseTime() time.Duration {
	if os.Getenv("IMD_TEST_LONG") != "" {
		return 30 * time.Second
	}
	return 3 * time.Second
}

// The schedules. Each begins with owners a, b and c.
var schedules = []struct {
	name  string
	stale bool // somebody who was replaced must have been refused
	run   func(c *cluster)
}{
	{"nothing happens", false, func(*cluster) { time.Sleep(time.Second) }},
	{"an owner is killed and comes back", true, func(c *cluster) {
		owner := c.home(hot)
		over := c.fault("kill")
		c.signal(owner, syscall.SIGKILL)
		time.Sleep(300 * time.Millisecond)
		c.turn(without(owner)...)
		time.Sleep(time.Second)
		c.start(owner)
		c.turn("a", "b", "c")
		over()
		time.Sleep(time.Second)
	}},
	{"an owner is paused and wakes up", true, func(c *cluster) {
		owner := c.home(hot)
		over := c.fault("pause")
		c.signal(owner, syscall.SIGSTOP)
		time.Sleep(300 * time.Millisecond)
		c.turn(without(owner)...)
		time.Sleep(pauseTime())
		c.signal(owner, syscall.SIGCONT)
		over()
		time.Sleep(time.Second)
		c.turn("a", "b", "c")
		time.Sleep(500 * time.Millisecond)
	}},
	{"an owner is paused inside an append", true, func(c *cluster) {
		for range 2 {
			owner := c.home(hot)
			over := c.fault("pause inside an append")
			if _, err := c.db.Exec(c.t.Context(), `INSERT INTO hold VALUES ($1, 1.8)`, number(owner)); err != nil {
				c.t.Error(err)
			}
			time.Sleep(200 * time.Millisecond) // its append has proved the fence and sleeps
			c.signal(owner, syscall.SIGSTOP)
			c.exec(`TRUNCATE hold`)
			c.turn(without(owner)...)
			time.Sleep(2500 * time.Millisecond)
			c.signal(owner, syscall.SIGCONT)
			over()
			time.Sleep(500 * time.Millisecond)
			c.turn("a", "b", "c")
			time.Sleep(300 * time.Millisecond)
		}
	}},
	{"an owner's append waits behind its check", false, func(c *cluster) {
		for range 2 {
			over := c.fault("wait behind the check")
			c.exec(fmt.Sprintf(`INSERT INTO hold_shard SELECT id, fence FROM shard WHERE id = %d`, ring.Shard(hot)))
			c.until(time.Second, c.held) // an append has proved the fence
			next := without(c.home(hot))
			c.turn(next...)
			// With a fence that holds, nobody else can write before the append ends.
			if seq := c.write(c.home(hot), time.Second); seq > 0 {
				c.until(time.Second, func() bool { return c.shown.Load() >= seq })
			}
			c.exec(`DELETE FROM hold_shard`)
			over()
			c.turn("a", "b", "c")
			c.write(c.home(hot), 5*time.Second) // what was refused is taken now
		}
	}},
	{"an owner is cut from the control plane", true, func(c *cluster) {
		owner := c.home(hot)
		over := c.fault("cut")
		c.mu.Lock()
		c.frozen[owner] = true
		c.mu.Unlock()
		c.turn(without(owner)...)
		time.Sleep(1500 * time.Millisecond)
		c.mu.Lock()
		c.frozen[owner] = false
		c.mu.Unlock()
		c.turn("a", "b", "c")
		over()
		time.Sleep(500 * time.Millisecond)
	}},
	{"two views of the ring at once", true, func(c *cluster) {
		over := c.fault("two views")
		c.anywhere.Store(true)
		for i := range 8 {
			c.mu.Lock()
			c.rev++
			for j, n := range []string{"a", "b", "c"} { // each sees itself alone, one newer than the other
				if (i+j)%2 == 0 {
					c.tell(n, ringFile{c.rev, []string{n}})
				}
			}
			c.mu.Unlock()
			time.Sleep(250 * time.Millisecond)
		}
		c.anywhere.Store(false)
		c.turn("a", "b", "c")
		over()
		time.Sleep(500 * time.Millisecond)
	}},
	{"a process sees a ring before all others", true, func(c *cluster) {
		over := c.fault("one view ahead")
		for range 4 {
			next := without(c.home(hot))[0]
			c.mu.Lock()
			c.rev++
			c.tell(next, ringFile{c.rev, []string{next}})
			c.mu.Unlock()
			c.write(next, 3*time.Second)
			c.turn("a", "b", "c")
			c.write(c.home(hot), 5*time.Second)
		}
		over()
	}},
	{"the ring changes all the time", true, func(c *cluster) {
		every, times := 400*time.Millisecond, 10
		if os.Getenv("IMD_TEST_LONG") != "" {
			every, times = 2*time.Second, 15
		}
		over := c.fault("churn")
		for i := range times {
			if i%2 == 0 {
				c.turn(without(c.home(hot))...)
			} else {
				c.turn("a", "b", "c")
			}
			time.Sleep(every)
		}
		c.turn("a", "b", "c")
		over()
	}},
}

func without(name string) (rest []string) {
	for _, n := range []string{"a", "b", "c"} {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// Whatever happens to owners and rings, both allocators keep one order: no
// number twice, none below one that was seen, and a cursor misses nothing.
func TestOwnersKeepOneOrder(t *testing.T) {
	for _, allocator := range []string{"segment", "transaction"} {
		for _, s := range schedules {
			t.Run(allocator+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, allocator, "a", "b", "c")
				r := c.run(func() { s.run(c) })
				for _, v := range found(r) {
					t.Error(v)
				}
				t.Logf("%d acknowledged, %d unknown, %d retries, %d refused as stale", r.Counts.Acked, r.Counts.Unknown, r.Counts.Retries, c.stale.Load())
				if r.Counts.Acked < enough {
					t.Errorf("only %d sends were acknowledged", r.Counts.Acked)
				}
				if s.stale && allocator == "segment" && c.stale.Load() == 0 {
					t.Error("nobody was refused as stale")
				}
			})
		}
	}
}
