package rate

import "time"

// Limit is the shape of a bucket. The zero value lets nothing through.
type Limit struct {
	PerSecond float64 // refill
	Burst     int     // size; what may pass at once after a quiet time
}

// Bucket is one token bucket. The zero value is full. Not safe for concurrent
// use.
type Bucket struct {
	used float64 // tokens missing at the time at
	at   int64   // Unix nanoseconds
}

// Take takes one token if there is one. If not, wait is how long it takes until
// there will be; nothing is taken.
func (b *Bucket) Take(now time.Time, l Limit) (ok bool, wait time.Duration) {
	b.refill(now, l)
	if b.used+1 <= float64(l.Burst) {
		b.used++
		return true, 0
	}
	if l.PerSecond <= 0 {
		return false, time.Hour
	}
	missing := b.used + 1 - float64(l.Burst)
	return false, min(time.Hour, time.Duration(missing/l.PerSecond*float64(time.Second)))
}

// Give puts back a token that was taken for nothing.
func (b *Bucket) Give() { b.used = max(0, b.used-1) }

// refill brings the bucket up to now. A clock that went back refills nothing.
func (b *Bucket) refill(now time.Time, l Limit) {
	t := now.UnixNano()
	if b.used > 0 && t > b.at {
		b.used = max(0, b.used-float64(t-b.at)/float64(time.Second)*l.PerSecond)
	}
	b.at = t
}

// full reports whether the bucket is as good as a new one.
func (b *Bucket) full(now time.Time, l Limit) bool {
	b.refill(now, l)
	return b.used == 0
}
