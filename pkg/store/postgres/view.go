package postgres

import (
	"encoding/binary"
	"errors"

	"github.com/imdhq/imd/pkg/im"
)

// span is a stretch of a log: the seqs above start up to end; end 0 = open.
type span struct{ start, end im.Seq }

// view is what one reader may see of one log.
type view struct {
	earlier []span // closed stretches before last, rising
	last    span
	cleared im.Seq // nothing up to here
	log     im.Seq // the newest entry of the log
}

// start is the first have: everything that the reader may see is above it.
func (v view) start() im.Seq { return max(v.first(), v.cleared) }

// first is the border of the first stretch and not of the newest, because one
// who was away while it was removed and came back still has the rest of the
// former stretch to read.
func (v view) first() im.Seq {
	if len(v.earlier) > 0 {
		return v.earlier[0].start
	}
	return v.last.start
}

// since is the border of the newest stretch: what is delivered live is above it.
func (v view) since() im.Seq { return max(v.last.start, v.cleared) }

// head is the newest entry of the reader's newest stretch. It is never below
// start; if it is equal, the reader sees nothing.
func (v view) head() im.Seq {
	if v.last.end != 0 {
		return v.last.end
	}
	return v.log
}

// within are the visible stretches between after and before, both excluded, as
// closed rising spans; before 0 = no bound.
func (v view) within(after, before im.Seq) []span {
	top := v.head()
	if before != 0 {
		top = min(top, before-1)
	}
	low := max(after, v.cleared)
	var out []span
	add := func(s span) {
		s.start, s.end = max(s.start, low), min(s.end, top)
		if s.start < s.end {
			out = append(out, s)
		}
	}
	for _, s := range v.earlier {
		add(s)
	}
	add(span{v.last.start, v.head()})
	return out
}

// encodeSpans packs closed spans for a column.
func encodeSpans(spans []span) []byte {
	out := []byte{} // not nil: the column is NOT NULL
	for _, s := range spans {
		out = binary.AppendUvarint(out, uint64(s.start))
		out = binary.AppendUvarint(out, uint64(s.end))
	}
	return out
}

// decodeSpans is the reverse of encodeSpans.
func decodeSpans(b []byte) ([]span, error) {
	var out []span
	for len(b) > 0 {
		start, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("bad list of stretches")
		}
		end, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return nil, errors.New("bad list of stretches")
		}
		out = append(out, span{im.Seq(start), im.Seq(end)})
		b = b[n+m:]
	}
	return out, nil
}
