package controltest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

// asked is a lock that was asked for, as it came.
type asked struct {
	control.Lock
	err error
}

// ask asks for a lock in the background, and returns when the place in the
// queue is seen.
func ask(ctx context.Context, t *testing.T, p *process, name, purpose string) <-chan asked {
	t.Helper()
	before := queue(t, p, name)
	out := make(chan asked, 1)
	go func() {
		l, err := p.Lock(ctx, control.LockRequest{Name: name, Purpose: purpose})
		out <- asked{l, err}
	}()
	eventually(t, "the queue grows", func() bool { return len(queue(t, p, name)) == len(before)+1 })
	return out
}

func queue(t *testing.T, p *process, name string) []control.LockInfo {
	t.Helper()
	all, err := p.Locks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []control.LockInfo
	for _, i := range all {
		if i.Name == name {
			out = append(out, i)
		}
	}
	return out
}

func got(t *testing.T, c <-chan asked) control.Lock {
	t.Helper()
	select {
	case a := <-c:
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.Lock
	case <-time.After(limit):
		t.Fatalf("no lock after %v", limit)
		return nil
	}
}

func unlock(t *testing.T, l control.Lock) {
	t.Helper()
	if err := l.Unlock(context.Background()); err != nil {
		t.Error(err)
	}
	select {
	case <-l.Done():
	default:
		t.Error("a lock that was given up is not done")
	}
	if l.Valid() {
		t.Error("a lock that was given up is valid")
	}
}

func lockOrder(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	neighbour := got(t, ask(t.Context(), t, a, "mig", "a prefix of the other name"))
	first := got(t, ask(t.Context(), t, a, "migrate", "to schema 7"))
	second, third := ask(t.Context(), t, b, "migrate", ""), ask(t.Context(), t, a, "migrate", "")
	q := queue(t, b, "migrate")
	if !q[0].Held || q[1].Held || q[2].Held || q[0].Purpose != "to schema 7" || q[0].Node != "a" || q[0].BootID != "a1" || q[1].Node != "b" ||
		q[0].Token != first.Token() || time.Since(q[0].Asked) > time.Minute {
		t.Errorf("the queue is %+v", q)
	}
	if s := a.Stats().Locks; s.Held != 2 || s.Waiting != 1 {
		t.Errorf("counted %+v", s)
	}
	select {
	case <-second:
		t.Fatal("two hold the lock")
	case <-third:
		t.Fatal("two hold the lock")
	case <-time.After(200 * time.Millisecond):
	}
	unlock(t, first)
	l := got(t, second)
	if l.Token() <= first.Token() {
		t.Errorf("token %d follows %d", l.Token(), first.Token())
	}
	unlock(t, l)
	unlock(t, got(t, third))
	unlock(t, neighbour)
	if q := queue(t, a, "migrate"); len(q) != 0 {
		t.Errorf("left in the queue: %+v", q)
	}
	if s := a.Stats().Locks; s != (control.LockStats{}) {
		t.Errorf("counted %+v", s)
	}
	for _, r := range []control.LockRequest{{Name: "A/b"}, {Name: "a", Purpose: strings.Repeat("x", 257)}} {
		if _, err := a.Lock(t.Context(), r); err == nil {
			t.Errorf("lock %+v is handed out", r)
		}
	}
}

func lockGivenUp(t *testing.T, f Fixture) {
	a := serving(t, f, node("a", "a1", ""))
	first := got(t, ask(t.Context(), t, a, "x", ""))
	ctx, cancel := context.WithCancel(t.Context())
	second := ask(ctx, t, a, "x", "")
	third := ask(t.Context(), t, a, "x", "")
	cancel()
	if r := <-second; !errors.Is(r.err, context.Canceled) {
		t.Errorf("a waiter that gave up was told %v", r.err)
	}
	eventually(t, "it leaves the queue", func() bool { return len(queue(t, a, "x")) == 2 })
	unlock(t, first)
	unlock(t, got(t, third))
}

// lockLostWaiting: the lease of a waiter ends during the wait. When its turn
// comes, it must not believe that it holds the lock.
func lockLostWaiting(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	first := got(t, ask(t.Context(), t, a, "x", ""))
	second := ask(t.Context(), t, b, "x", "")
	for _, i := range queue(t, a, "x") {
		if !i.Held {
			f.Store.Revoke(t, lockKey(t, f, a, "x", i.Token))
		}
	}
	third := ask(t.Context(), t, a, "x", "")
	unlock(t, first)
	l2, l3 := got(t, third), (control.Lock)(nil)
	select {
	case <-second:
		t.Error("two hold the lock")
	case <-time.After(200 * time.Millisecond):
	}
	unlock(t, l2)
	l3 = got(t, second)
	if l3.Token() <= l2.Token() {
		t.Errorf("token %d follows %d", l3.Token(), l2.Token())
	}
	unlock(t, l3)
}

// lockKey finds the key of a place in the queue.
func lockKey(t *testing.T, f Fixture, p *process, name string, token int64) string {
	t.Helper()
	prefix := strings.Replace(p.key, "/nodes/"+string(p.node.ID), "/locks/"+name+"/", 1)
	for _, k := range f.Store.Keys(t, prefix) {
		if k.Created == token {
			return k.Key
		}
	}
	t.Fatalf("there is no key of token %d", token)
	return ""
}

func lockLost(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	l := got(t, ask(t.Context(), t, a, "x", ""))
	if err := l.Put(t.Context(), "value", "1"); err != nil {
		t.Fatal(err)
	}
	waiting := ask(t.Context(), t, b, "x", "")
	f.Store.Revoke(t, lockKey(t, f, a, "x", l.Token()))
	l2 := got(t, waiting)
	if err := l2.Put(t.Context(), "value", "2"); err != nil {
		t.Fatal(err)
	}
	if err := l.Put(t.Context(), "value", "3"); !errors.Is(err, control.ErrLockLost) {
		t.Errorf("a lost lock writes: %v", err)
	}
	eventually(t, "the loser knows", func() bool { return !l.Valid() })
	<-l.Done()
	if v, _ := f.Store.Read(t, strings.Replace(a.key, "/nodes/a", "/guarded/value", 1)); v != "2" {
		t.Errorf("the value is %q", v)
	}
	if s := a.Stats().Locks; s.Lost != 1 || s.Held != 0 {
		t.Errorf("counted %+v", s)
	}
	unlock(t, l2)
	if err := l.Unlock(context.Background()); err != nil {
		t.Errorf("giving up a lost lock: %v", err)
	}
}

func lockFence(t *testing.T, f Fixture) {
	a, b := serving(t, f, node("a", "a1", "")), serving(t, f, node("b", "b1", ""))
	fences := newFences()
	l := got(t, ask(t.Context(), t, a, "x", ""))
	first, err := l.Fence(t.Context(), fences)
	if err != nil || first.Token != 1 || first.Name != "lock/x" || first.Holder != "a/a1" {
		t.Fatalf("fence %+v, %v", first, err)
	}
	waiting := ask(t.Context(), t, b, "x", "")
	f.Store.Revoke(t, lockKey(t, f, a, "x", l.Token()))
	l2 := got(t, waiting)
	second, err := l2.Fence(t.Context(), fences)
	if err != nil || second.Token != 2 {
		t.Fatalf("fence %+v, %v", second, err)
	}
	if _, err := l.Fence(t.Context(), fences); !errors.Is(err, control.ErrLockLost) {
		t.Errorf("a lost lock is fenced: %v", err)
	}
	if fences.effect(first) == nil || fences.effect(second) != nil {
		t.Error("the fence lets the loser have effects")
	}
	fences.set(func() {
		row := fences.rows["lock/x"]
		row.Revision += 1_000_000
		row.Holder = "somebody"
		fences.rows["lock/x"] = row
	})
	if third, err := l2.Fence(t.Context(), fences); err != nil || third.Token != 3 {
		t.Errorf("after a restore of etcd: %+v, %v", third, err)
	}
	unlock(t, l2)
}
