package rules

import (
	"encoding/binary"
	"errors"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// View is what one reader may see of one log. That of the system has nothing but
// Log: it sees everything.
type View struct {
	Earlier []store.Stretch // closed stretches before Last, rising
	Last    store.Stretch   // End 0 = still open
	Cleared im.Seq          // nothing up to here
	Log     im.Seq          // the newest entry of the log
}

// Start is the first have: everything that the reader may see is above it.
func (v View) Start() im.Seq { return max(v.First(), v.Cleared) }

// First is the border of the first stretch and not of the newest, because one
// who was away while it was removed and came back still has the rest of the
// former stretch to read.
func (v View) First() im.Seq {
	if len(v.Earlier) > 0 {
		return v.Earlier[0].Start
	}
	return v.Last.Start
}

// Since is the border of the newest stretch: what is delivered live is above it.
func (v View) Since() im.Seq { return max(v.Last.Start, v.Cleared) }

// Head is the newest entry of the reader's newest stretch. It is never below
// Start; if it is equal, the reader sees nothing.
func (v View) Head() im.Seq {
	if v.Last.End != 0 {
		return v.Last.End
	}
	return v.Log
}

// Keep hides what is up to a border from everyone, as retention does. Of one who
// has left before, it hides all.
func (v *View) Keep(border im.Seq) { v.Cleared = max(v.Cleared, min(border, v.Head())) }

// Within are the visible stretches between after and before, both excluded,
// closed and rising; before 0 = no bound.
func (v View) Within(after, before im.Seq) []store.Stretch {
	top := v.Head()
	if before != 0 {
		top = min(top, before-1)
	}
	low := max(after, v.Cleared)
	var out []store.Stretch
	add := func(s store.Stretch) {
		s.Start, s.End = max(s.Start, low), min(s.End, top)
		if s.Start < s.End {
			out = append(out, s)
		}
	}
	for _, s := range v.Earlier {
		add(s)
	}
	add(store.Stretch{Start: v.Last.Start, End: v.Head()})
	return out
}

// Complete is the range in which p, the answer to q, has everything that the
// reader may see. A page without End has at least one entry.
func (v View) Complete(p store.HistoryPage, q store.HistoryQuery) (from, to im.Seq) {
	from, to = q.After+1, v.Head()
	if q.Before != 0 {
		to = min(to, q.Before-1)
	}
	if p.End {
		return from, to
	}
	if q.Backward {
		return p.Entries[0].Seq, to
	}
	return from, p.Entries[len(p.Entries)-1].Seq
}

// EncodeStretches packs closed stretches for a column. It is never nil.
func EncodeStretches(list []store.Stretch) []byte {
	out := []byte{} // not nil: the column is NOT NULL
	for _, s := range list {
		out = binary.AppendUvarint(out, uint64(s.Start))
		out = binary.AppendUvarint(out, uint64(s.End))
	}
	return out
}

// DecodeStretches is the reverse of EncodeStretches; none = nil. An error means
// that the column is damaged.
func DecodeStretches(b []byte) ([]store.Stretch, error) {
	var out []store.Stretch
	for len(b) > 0 {
		start, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("bad list of stretches")
		}
		end, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return nil, errors.New("bad list of stretches")
		}
		out = append(out, store.Stretch{Start: im.Seq(start), End: im.Seq(end)})
		b = b[n+m:]
	}
	return out, nil
}
