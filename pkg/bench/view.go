package bench

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// effects does what a timeline asks for.
func (b *inbox) effects(cv *conv, fx timeline.Effects) {
	h := b.d.h
	if fx.Reset {
		h.rec.resync(b.d, cv.id, "")
		cv.opened = false
	}
	if len(fx.Show) > 0 {
		b.open(cv)
	}
	for _, e := range fx.Show {
		text, hash := []byte(nil), ""
		if e == h.lean.entry {
			text, hash = h.lean.text, h.lean.hash
			if hash == "" {
				hash = hashText(text)
			}
		} else {
			text = []byte(e.Content.GetText())
		}
		h.rec.show(b.d, cv.id, e, hash)
		cv.held = e.Seq
		if e.Sender != b.d.user {
			h.shown(b.d, text)
		}
	}
	if fx.History != nil {
		b.read(cv, *fx.History)
	}
	if fx.Sync && !b.again && b.d.cur != nil {
		b.again = true
		b.syncSoon(b.d.cur)
	}
	if cv.tl.AckDue() {
		b.ackLater(cv)
	}
	b.wakeAt(cv)
}

// open records where the device begins with a conversation, or begins anew
// after it took a newer page. A beginning below what it has shown is none: its
// user was away and is back, and what it has it keeps.
func (b *inbox) open(cv *conv) {
	from := cv.tl.From()
	if !cv.tl.Known() || cv.opened && from <= max(cv.from, cv.held) {
		return
	}
	cv.opened, cv.from, cv.held = true, from, from
	b.d.h.rec.open(b.d, cv.id, from)
}

// wakeAt lets the timeline know when the time it waits for has come.
func (b *inbox) wakeAt(cv *conv) {
	ms, ok := cv.tl.WakeAt()
	at := time.Duration(ms)*time.Millisecond + time.Millisecond
	if !ok || cv.wake != 0 && cv.wake <= at {
		return
	}
	cv.wake = at
	b.d.h.l.at(at, func() {
		if cv.wake == at {
			cv.wake = 0
			b.effects(cv, cv.tl.Tick(b.ms()))
		}
	})
}

// read asks for the page that a timeline wants.
func (b *inbox) read(cv *conv, req timeline.Request) {
	s := b.d.cur
	if s == nil {
		return // it asks again after the next sync
	}
	limit := protocol.MaxHistoryLimit
	if req.Jump {
		limit = syncPage
	}
	s.request(historyFrame(cv.id, req.After, req.Before, req.Backward, limit), func(f *clientv1.ServerFrame) {
		switch p := f.GetHistoryResult().GetPage(); {
		case b.d.cur != s:
		case p != nil:
			for _, m := range p.Entries {
				e := &entryIn{}
				e.from(m)
				b.d.out.stored(cv, e)
			}
			b.effects(cv, cv.tl.Page(b.ms(), req, p))
		case f != nil:
			cv.tl.HistoryFailed(b.ms(), int64(f.GetError().GetRetryAfterMs()))
			b.wakeAt(cv)
		}
	})
}
