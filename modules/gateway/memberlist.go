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
	var merged []memberEdit
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
		merged = old.merge(merged[:0], edits[:n])
		edits = edits[n:]
		l.n += len(merged) - len(old.ends)
		made := cut(merged)
		l.blocks = slices.Replace(l.blocks, at, min(at+1, len(l.blocks)), made...)
		at = max(at+len(made)-1, 0)
	}
}

// merge appends the members of a block after sorted edits.
func (b *memberBlock) merge(to, edits []memberEdit) []memberEdit {
	i := 0
	for k, e := range edits {
		if k+1 < len(edits) && edits[k+1].user == e.user {
			continue // a later one counts
		}
		for ; i < len(b.ends) && b.id(i) < e.user; i++ {
			to = append(to, memberEdit{user: b.id(i), start: b.startOf(i)})
		}
		if i < len(b.ends) && b.id(i) == e.user {
			i++
		}
		if !e.gone {
			to = append(to, e)
		}
	}
	for ; i < len(b.ends); i++ {
		to = append(to, memberEdit{user: b.id(i), start: b.startOf(i)})
	}
	return to
}

// cut makes blocks of sorted members, as few as hold them and about as full as each
// other.
func cut(members []memberEdit) []memberBlock {
	n := (len(members) + blockMembers - 1) / blockMembers
	made := make([]memberBlock, n)
	for i := range made {
		made[i] = newMemberBlock(members[i*len(members)/n : (i+1)*len(members)/n])
	}
	return made
}

func newMemberBlock(members []memberEdit) memberBlock {
	b := memberBlock{ends: make([]uint32, len(members)), start: members[0].start}
	size, same := 0, true
	for i, m := range members {
		size += len(m.user)
		b.ends[i] = uint32(size)
		same = same && m.start == b.start
	}
	var ids strings.Builder
	ids.Grow(size)
	if !same {
		b.starts = make([]int64, len(members))
	}
	for i, m := range members {
		ids.WriteString(m.user)
		if !same {
			b.starts[i] = m.start
		}
	}
	b.ids = ids.String()
	return b
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
