// Package outbox tests what is told outside, from the commit to the receiver: on
// whole nodes, and on leaders that die, are paused or are cut off in the middle of
// each job.
package outbox
