package store

import "time"

// Pooled is a MessageStore that keeps connections to a server in pools.
type Pooled interface {
	// Pools says how the pools are used now. It never waits.
	Pools() []Pool
}

// Pool is what one pool of connections has and did since the store was opened.
type Pool struct {
	Name    string        // one word
	Most    int           // connections that it may open
	Open    int           // connections that there are, also those that are being made
	InUse   int           // of them by a call
	Waits   int64         // calls that got a connection but not at once
	Waited  time.Duration // by those calls together
	GivenUp int64         // calls that got none in their time
}
