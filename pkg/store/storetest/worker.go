package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

func (k *kit) mark(worker int) time.Time {
	k.Helper()
	m, err := k.s.WorkerMark(k.ctx(), worker)
	k.must(err)
	return m
}

func (k *kit) moveMark(worker int, from, to time.Time) bool {
	k.Helper()
	ok, err := k.s.MoveWorkerMark(k.ctx(), worker, from, to)
	k.must(err)
	return ok
}

func workerMarks(k *kit) {
	if !k.mark(70).IsZero() {
		k.Error("a worker that never issued has a mark")
	}
	t0 := time.Now().Add(10 * time.Second).Truncate(time.Microsecond)
	if !k.moveMark(70, time.Time{}, t0) || !k.mark(70).Equal(t0) {
		k.Errorf("mark %v, set %v", k.mark(70), t0)
	}
	t1 := t0.Add(-5 * time.Second) // a clean stop
	if !k.moveMark(70, t0, t1) || !k.mark(70).Equal(t1) || !k.mark(71).IsZero() {
		k.Errorf("mark %v after a clean stop", k.mark(70))
	}
}

func workerMarkMoved(k *kit) {
	t0 := time.Now().Truncate(time.Microsecond)
	if k.moveMark(3, t0, t0.Add(time.Second)) {
		k.Error("a mark that is not there was moved")
	}
	if !k.moveMark(3, time.Time{}, t0) || k.moveMark(3, time.Time{}, t0.Add(time.Hour)) {
		k.Error("a first mark must come once")
	}
	if k.moveMark(3, t0.Add(time.Microsecond), t0.Add(time.Hour)) || !k.mark(3).Equal(t0) {
		k.Error("a mark was moved from what it is not")
	}
	if k.moveMark(3, t0, t0.Add(time.Minute)); !k.mark(3).Equal(t0.Add(time.Minute)) {
		k.Error("a mark was not moved from what it is")
	}
}

func (k *kit) takeWorker(worker int, holder string, ttl time.Duration) bool {
	k.Helper()
	ok, err := k.s.TakeWorker(k.ctx(), worker, holder, ttl)
	k.must(err)
	return ok
}

func (k *kit) renewWorker(worker int, holder string, ttl time.Duration) bool {
	k.Helper()
	ok, err := k.s.RenewWorker(k.ctx(), worker, holder, ttl)
	k.must(err)
	return ok
}

func workerLeases(k *kit) {
	if !k.takeWorker(0, "a", time.Hour) || k.takeWorker(0, "b", time.Hour) || !k.takeWorker(0, "a", time.Hour) {
		k.Error("a number is held by one at a time, who may take it again")
	}
	if k.renewWorker(0, "b", time.Hour) || k.renewWorker(1, "a", time.Hour) || !k.renewWorker(0, "a", time.Hour) {
		k.Error("only the holder renews")
	}
	k.must(k.s.FreeWorker(k.ctx(), 0, "b"))
	if k.takeWorker(0, "b", time.Hour) {
		k.Error("a stranger freed the number")
	}
	k.must(k.s.FreeWorker(k.ctx(), 0, "a"))
	if k.renewWorker(0, "a", time.Hour) || !k.takeWorker(0, "b", -time.Second) {
		k.Error("a number that was freed is free")
	}
	if !k.renewWorker(0, "b", -time.Second) {
		k.Error("a lease that ended can be renewed until another takes the number")
	}
	if !k.takeWorker(0, "c", time.Hour) || k.renewWorker(0, "b", time.Hour) {
		k.Error("a number whose lease ended is free for others")
	}
	for _, w := range []int{-1, 64} {
		if _, err := k.s.TakeWorker(k.ctx(), w, "a", time.Hour); err == nil {
			k.Errorf("number %d is leased by the store", w)
		}
	}
}

func workerRace(k *kit) {
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			ok, err := k.s.TakeWorker(k.ctx(), 5, fmt.Sprint(i), time.Hour)
			if err != nil {
				k.Error(err)
			}
			if ok {
				won.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		k.Errorf("%d of 16 hold the number", won.Load())
	}
}
