package presence

import (
	"container/heap"
	"time"
)

// alarms are users by the time at which something of them is due. The zero value
// is empty.
type alarms struct{ heap []*user }

// set changes when a user is due; the zero time = not at all.
func (a *alarms) set(u *user, at time.Time) {
	if u.wake.Equal(at) {
		return
	}
	there := !u.wake.IsZero()
	u.wake = at
	switch {
	case at.IsZero():
		heap.Remove(a, u.index)
	case there:
		heap.Fix(a, u.index)
	default:
		heap.Push(a, u)
	}
}

// next takes a user that is due off the list; nil = none is.
func (a *alarms) next(now time.Time) *user {
	if len(a.heap) == 0 || now.Before(a.heap[0].wake) {
		return nil
	}
	u := heap.Pop(a).(*user)
	u.wake = time.Time{}
	return u
}

func (a *alarms) Len() int           { return len(a.heap) }
func (a *alarms) Less(i, j int) bool { return a.heap[i].wake.Before(a.heap[j].wake) }
func (a *alarms) Swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.heap[i].index, a.heap[j].index = i, j
}

func (a *alarms) Push(x any) {
	u := x.(*user)
	u.index = len(a.heap)
	a.heap = append(a.heap, u)
}

func (a *alarms) Pop() any {
	last := len(a.heap) - 1
	u := a.heap[last]
	a.heap[last] = nil
	a.heap = a.heap[:last]
	u.index = -1
	return u
}
