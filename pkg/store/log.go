package store

// Logged is a MessageStore that keeps a log beside its database, which begins anew
// when all of it is copied there.
type Logged interface {
	// LogBytes is how large the log is on the disk; 0 = unknown. It never waits for
	// the store.
	LogBytes() int64
}
