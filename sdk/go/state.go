package imd

import "time"

// State is where a client stands.
type State uint8

const (
	// Idle is before the first connection, and after the last: the client has
	// ended and Err tells why.
	Idle State = iota
	// Joining is connecting and signing in.
	Joining
	// Online is a session that stands.
	Online
	// Draining is a session that stands while the client moves to another node.
	Draining
	// Waiting is the pause before the next attempt.
	Waiting
)

// String returns the state as a lower-case word.
func (s State) String() string {
	switch s {
	case Joining:
		return "joining"
	case Online:
		return "online"
	case Draining:
		return "draining"
	case Waiting:
		return "waiting"
	}
	return "idle"
}

// StateChange is one change of a client's state.
type StateChange struct {
	From, To State
	// Err is why the connection was lost or could not be made; nil otherwise.
	Err error
	// RetryIn is the pause before the next attempt, of Waiting.
	RetryIn time.Duration
}

// stateQueue is how many changes wait for a slow OnState.
const stateQueue = 16

// setState notes a change and hands it to the goroutine that calls OnState.
// The client's lock is held.
func (c *Client) setState(to State, err error, retryIn time.Duration) {
	change := StateChange{From: c.state, To: to, Err: err, RetryIn: retryIn}
	c.state = to
	if err != nil {
		c.lastErr = err
	}
	if c.opts.OnState == nil {
		return
	}
	if len(c.changes) == stateQueue {
		c.changes = c.changes[1:]
	}
	c.changes = append(c.changes, change)
	signal(c.changed)
}

// notifyState calls OnState until the last change, to Idle, is told.
func (c *Client) notifyState() {
	for range c.changed {
		c.mu.Lock()
		changes := c.changes
		c.changes = nil
		c.mu.Unlock()
		for _, change := range changes {
			c.opts.OnState(change)
			if change.To == Idle {
				return
			}
		}
	}
}

// signal wakes the reader of a channel of capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
