package balance

import "time"

// The budget's sizes in tokens: one repeat costs one.
const (
	budgetFull  = 100.0
	budgetEarn  = 0.1 // by one success
	budgetFloor = 3.0 // a second, whatever succeeds
)

// Budget bounds repeats, so that they cannot double the load of nodes that are
// in trouble. It is full at first. Below half there are neither retries nor
// backup requests. The zero value is ready. Not safe for concurrent use.
type Budget struct {
	spent float64 // tokens missing
	at    time.Time
}

// Tokens is what is left, 0 to 100.
func (b *Budget) Tokens(now time.Time) float64 {
	if d := now.Sub(b.at).Seconds(); d > 0 {
		b.spent = max(b.spent-d*budgetFloor, 0)
		b.at = now
	}
	return budgetFull - b.spent
}

// Succeeded adds what a call that was answered earns.
func (b *Budget) Succeeded(now time.Time) {
	b.Tokens(now)
	b.spent = max(b.spent-budgetEarn, 0)
}

// Take takes one token; false = no repeat now.
func (b *Budget) Take(now time.Time) bool {
	if b.Tokens(now)-1 < budgetFull/2 {
		return false
	}
	b.spent++
	return true
}
