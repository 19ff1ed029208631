package delivery

import "time"

// Redeliveries is how often an entry without ack is usually delivered again.
const Redeliveries = 5

// backoff has the waits before redeliveries as multiples of the first; the last
// one holds for all that follow.
var backoff = [...]time.Duration{1, 2, 4}

// Delivery is one entry that was delivered and not acknowledged.
type Delivery struct {
	Seq   int64
	Data  []byte // the frame as it was sent; shared, read only
	due   time.Time
	times uint8 // Redeliveries so far
}

// Pending holds the deliveries of one connection that wait for an ack. It has
// no clock and no lock. The zero value is not ready; set First and Jitter. First
// and Most may change between calls.
//
// The wait for an entry is counted from its delivery or from the last ack of
// its conversation, whichever is later. After the last redelivery it is
// forgotten: the client's cursor will find it.
type Pending struct {
	First  time.Duration  // the first wait
	Most   int            // redeliveries of one entry, up to 255; 0 = Redeliveries
	Jitter func() float64 // a factor around 1

	convs map[string][]Delivery // rising seq
	n     int
	bytes int
	next  time.Time // not later than the earliest due; zero = nothing waits
}

// Add notes an entry that was just delivered; its seq is above those noted
// before in its conversation.
func (p *Pending) Add(now time.Time, conv string, seq int64, data []byte) {
	if p.convs == nil {
		p.convs = make(map[string][]Delivery)
	}
	d := Delivery{Seq: seq, Data: data, due: p.after(now, 0)}
	p.convs[conv] = append(p.convs[conv], d)
	p.n++
	p.bytes += len(data)
	p.earlier(d.due)
}

// Ack takes (after, seq] of a conversation off and starts the waits of what is
// left of it anew.
func (p *Pending) Ack(now time.Time, conv string, after, seq int64) {
	list, ok := p.convs[conv]
	if !ok {
		return
	}
	kept := list[:0]
	for _, d := range list {
		if d.Seq > after && d.Seq <= seq {
			p.n--
			p.bytes -= len(d.Data)
			continue
		}
		d.due = p.after(now, d.times)
		kept = append(kept, d)
	}
	p.store(conv, list, kept)
}

// Due calls again for each delivery whose wait is over, in order of seq within
// a conversation. If the client has not read what it has (busy), they wait
// once more instead.
func (p *Pending) Due(now time.Time, busy bool, again func(conv string, d *Delivery)) {
	if p.n == 0 || now.Before(p.next) {
		return
	}
	p.next = time.Time{}
	most := p.Most
	if most == 0 {
		most = Redeliveries
	}
	for conv, list := range p.convs {
		kept := list[:0]
		for _, d := range list {
			if !now.Before(d.due) {
				if !busy && int(d.times) < most {
					again(conv, &d)
					d.times++
				}
				if int(d.times) >= most {
					p.n--
					p.bytes -= len(d.Data)
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

// Len is how many entries wait.
func (p *Pending) Len() int { return p.n }

// Bytes is how large their frames are together.
func (p *Pending) Bytes() int { return p.bytes }

// Next is when Due has something to do, or earlier; zero = nothing waits.
func (p *Pending) Next() time.Time { return p.next }

// Clear forgets everything, because the connection has ended.
func (p *Pending) Clear() { p.convs, p.n, p.bytes, p.next = nil, 0, 0, time.Time{} }

// store puts back what was kept of list, which shares its memory.
func (p *Pending) store(conv string, list, kept []Delivery) {
	clear(list[len(kept):])
	if len(kept) > 0 {
		p.convs[conv] = kept
		return
	}
	delete(p.convs, conv)
	if p.n == 0 {
		p.next = time.Time{}
	}
}

func (p *Pending) after(now time.Time, times uint8) time.Time {
	return now.Add(time.Duration(float64(p.First*backoff[min(int(times), len(backoff)-1)]) * p.Jitter()))
}

func (p *Pending) earlier(t time.Time) {
	if p.next.IsZero() || t.Before(p.next) {
		p.next = t
	}
}
