package imd

import (
	"math/rand/v2"
	"time"
)

// Bounds of the pause before connecting again.
const (
	backoffBase = 500 * time.Millisecond
	backoffMax  = 30 * time.Second
	// backoffReset is how long a session must last for the next pause to
	// begin at the base again.
	backoffReset = 10 * time.Second
)

// backoffCap returns the longest pause of an attempt, from 0 on.
func backoffCap(attempt int) time.Duration {
	if attempt > 6 {
		return backoffMax
	}
	return min(backoffBase<<attempt, backoffMax)
}

// backoff returns the pause before an attempt: what the server told, else
// anything up to the cap, so that many clients do not come back at once.
func backoff(attempt int, told time.Duration) time.Duration {
	if told > 0 {
		return told
	}
	return rand.N(backoffCap(attempt))
}
