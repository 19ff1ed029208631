package gateway

import (
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/im"
)

// blockMembers is how many members a block has at most. A change writes a block
// anew, and a look-up reads a few of its ids.
const blockMembers = 512

// memberList is the members of a group, sorted by id, each with its start. It
// takes the bytes of the ids and some 4 to 12 more for each. The zero value has
// none. Not safe for concurrent use.
type memberList struct {
	blocks []memberBlock // none is empty; ids rise from one to the next
	n      int
}

// memberBlock is up to blockMembers of them. It never changes.
type memberBlock struct {
	ids    string   // one behind the other
	ends   []uint32 // where in ids each one ends
	start  int64    // of all, if starts is nil
	starts []int64
}

// memberEdit is a member that comes with a start, or goes.
type memberEdit struct {
	user  string
	start int64
	gone  bool
}

// len is how many members there are.
func (l *memberList) len() int { return l.n }

// start is from where on a user sees entries; false = it is no member.
func (l *memberList) start(user im.UserID) (int64, bool) {
	at, found := slices.BinarySearchFunc(l.blocks, string(user), func(b memberBlock, u string) int { return strings.Compare(b.id(0), u) })
	if !found {
		at--
	}
	if at < 0 {
		return 0, false
	}
	b := &l.blocks[at]
	if i, found := b.find(string(user)); found {
		return b.startOf(i), true
	}
	return 0, false
}

// apply makes changes, the later of two for a user counting. It sorts them and keeps
// none of their memory.
func (l *memberList) apply(edits []memberEdit) {
	slices.SortStableFunc(edits, func(a, b memberEdit) int { return strings.Compare(a.user, b.user) })
	for at := 0; len(edits) > 0; {
		// Of the blocks from at on, the last that does not begin above the first edit.
		for at+1 < len(l.blocks) && l.blocks[at+1].id(0) <= edits[0].user {
			at++
		}
		n := len(edits)
		if at+1 < len(l.blocks) {
			next := l.blocks[at+1].id(0)
			n, _ = slices.BinarySearchFunc(edits, next, func(e memberEdit, u string) int { return strings.Compare(e.user, u) })
		}
		var old memberBlock
		if at < len(l.blocks) {
			old = l.blocks[at]
		}
		made := old.changed(edits[:n])
		edits = edits[n:]
		l.n -= len(old.ends)
		for i := range made {
			l.n += len(made[i].ends)
		}
		l.blocks = slices.Replace(l.blocks, at, min(at+1, len(l.blocks)), made...)
		at = max(at+len(made)-1, 0)
	}
}

// changed is the blocks of the members after sorted edits, as few as hold them and
// about as full as each other. It goes through them three times, to count, to
// measure and to write, and so makes nothing but what it returns.
func (b *memberBlock) changed(edits []memberEdit) []memberBlock {
	n := 0
	b.walk(edits, func(string, int64) { n++ })
	made := make([]memberBlock, (n+blockMembers-1)/blockMembers)
	border := func(k int) int { return k * n / len(made) } // the first of block k
	size, same := make([]int, len(made)), make([]bool, len(made))
	i, k := 0, -1
	b.walk(edits, func(user string, start int64) {
		if k < 0 || i == border(k+1) {
			k++
			made[k].start, same[k] = start, true
		}
		size[k] += len(user)
		same[k] = same[k] && start == made[k].start
		i++
	})
	var ids strings.Builder
	i, k = 0, -1
	b.walk(edits, func(user string, start int64) {
		if k < 0 || i == border(k+1) {
			k++
			ids.Reset()
			ids.Grow(size[k])
			made[k].ends = make([]uint32, 0, border(k+1)-border(k))
			if !same[k] {
				made[k].starts = make([]int64, 0, cap(made[k].ends))
			}
		}
		ids.WriteString(user)
		made[k].ends = append(made[k].ends, uint32(ids.Len()))
		if !same[k] {
			made[k].starts = append(made[k].starts, start)
		}
		if i++; i == border(k+1) {
			made[k].ids = ids.String()
		}
	})
	return made
}

// walk calls f for each member after sorted edits, in order.
func (b *memberBlock) walk(edits []memberEdit, f func(user string, start int64)) {
	i := 0
	for k, e := range edits {
		if k+1 < len(edits) && edits[k+1].user == e.user {
			continue // a later one counts
		}
		for ; i < len(b.ends) && b.id(i) < e.user; i++ {
			f(b.id(i), b.startOf(i))
		}
		if i < len(b.ends) && b.id(i) == e.user {
			i++
		}
		if !e.gone {
			f(e.user, e.start)
		}
	}
	for ; i < len(b.ends); i++ {
		f(b.id(i), b.startOf(i))
	}
}

// id is that of the i-th member.
func (b *memberBlock) id(i int) string {
	from := uint32(0)
	if i > 0 {
		from = b.ends[i-1]
	}
	return b.ids[from:b.ends[i]]
}

func (b *memberBlock) startOf(i int) int64 {
	if b.starts == nil {
		return b.start
	}
	return b.starts[i]
}

// find is where in the block a user is.
func (b *memberBlock) find(user string) (i int, found bool) {
	low, high := 0, len(b.ends)
	for low < high {
		mid := (low + high) / 2
		if b.id(mid) < user {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low, low < len(b.ends) && b.id(low) == user
}
