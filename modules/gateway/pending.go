package gateway

import "time"

// backoff has the waits before redeliveries as multiples of the first; the last
// one holds for all that follow.
var backoff = [...]time.Duration{1, 2, 4}

// delivery is one entry that was delivered and not acknowledged.
type delivery struct {
	seq   int64
	data  []byte // the frame as it was sent; shared, read only
	due   time.Time
	times uint8 // redeliveries so far
}

// pending holds the deliveries of one connection that wait for an ack. It has
// no clock and no lock. The zero value is not ready; set first, most and jitter. first and most may
// change between calls.
//
// The wait for an entry is counted from its delivery or from the last ack of
// its conversation, whichever is later. After the last redelivery it is
// forgotten: the client's cursor will find it.
type pending struct {
	first  time.Duration         // the first wait
	most   int                   // redeliveries of one entry; 1 to 255
	jitter func() float64        // a factor around 1
	convs  map[string][]delivery // rising seq
	n      int
	bytes  int
	next   time.Time // not later than the earliest due; zero = nothing waits
}

// add notes an entry that was just delivered; its seq is above those noted
// before in its conversation.
func (p *pending) add(now time.Time, conv string, seq int64, data []byte) {
	if p.convs == nil {
		p.convs = make(map[string][]delivery)
	}
	d := delivery{seq: seq, data: data, due: p.after(now, 0)}
	p.convs[conv] = append(p.convs[conv], d)
	p.n++
	p.bytes += len(data)
	p.earlier(d.due)
}

// ack takes (after, seq] of a conversation off and starts the waits of what is
// left of it anew.
func (p *pending) ack(now time.Time, conv string, after, seq int64) {
	list, ok := p.convs[conv]
	if !ok {
		return
	}
	kept := list[:0]
	for _, d := range list {
		if d.seq > after && d.seq <= seq {
			p.n--
			p.bytes -= len(d.data)
			continue
		}
		d.due = p.after(now, d.times)
		kept = append(kept, d)
	}
	p.store(conv, list, kept)
}

// due calls again for each delivery whose wait is over, in order of seq within
// a conversation. If the client has not read what it has (busy), they wait
// once more instead.
func (p *pending) due(now time.Time, busy bool, again func(conv string, d *delivery)) {
	if p.n == 0 || now.Before(p.next) {
		return
	}
	p.next = time.Time{}
	for conv, list := range p.convs {
		kept := list[:0]
		for _, d := range list {
			if !now.Before(d.due) {
				if !busy && int(d.times) < p.most {
					again(conv, &d)
					d.times++
				}
				if int(d.times) >= p.most {
					p.n--
					p.bytes -= len(d.data)
					continue
				}
				d.due = p.after(now, d.times)
			}
			p.earlier(d.due)
			kept = append(kept, d)
		}
		p.store(conv, list, kept)
	}
}

// store puts back what was kept of list, which shares its memory.
func (p *pending) store(conv string, list, kept []delivery) {
	clear(list[len(kept):])
	if len(kept) == 0 {
		delete(p.convs, conv)
		return
	}
	p.convs[conv] = kept
}

func (p *pending) after(now time.Time, times uint8) time.Time {
	return now.Add(time.Duration(float64(p.first*backoff[min(int(times), len(backoff)-1)]) * p.jitter()))
}

func (p *pending) earlier(t time.Time) {
	if p.next.IsZero() || t.Before(p.next) {
		p.next = t
	}
}
