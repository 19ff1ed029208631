// Package split tests a node whose roles are in several processes: what is
// reachable where, what is refused, and what happens to messages while one of
// the processes is away.
package split
