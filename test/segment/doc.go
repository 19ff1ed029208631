// Package segment judges who numbers what when several processes share a
// Postgres: owners of shards are killed, paused, paused in the middle of an
// append and cut from the control plane, and rings change under a conversation
// that is being written. Each process is a real one with real lanes and a real
// store; what its ring says comes from a file. The judge is that of imd verify, and
// both allocators stand before it.
package segment
