// Package idgen makes message ids: 63 bits that no two nodes ever make alike,
// roughly ordered by time. The library is sonyflake; what this package adds is
// that a clock may jump, a node may be paused or killed, and ids stay unique.
//
// # What keeps ids apart
//
// A node makes ids only with a worker number that it holds under a lease, and
// only while the lease holds by its own monotonic clock. Numbers 64 to 1,023 are
// leased from etcd; while it is away, numbers 0 to 63 from the message store,
// without which no message can be accepted anyway. A lease whose renewals fail is
// replaced before it ends.
//
// Each worker number has a high-water mark in the message store: a time that no
// id of this number has passed. The holder keeps it ahead of its clock and
// never makes an id beyond it. A number is taken only when its mark is past by
// the taker's own clock, and moved by comparing it with what was read. So it does not matter whose clock was wrong, whether
// the last holder was killed, or whether it still runs somewhere: its ids are
// all at or before the mark, and the new ones are all after it.
//
// # When the clock moves
//
//	up to 50 ms back: wait
//	up to 5 s back:   go on in the last millisecond while its 4,096 ids last, then refuse
//	further back: give the number up and take another
//	more than 1 s beyond the mark, or 5 s ahead of the monotonic clock: the same
//	beyond the mark because the store was away: refuse until it is written
//
// The library is not called while the clock is behind, because it would sleep
// for the whole jump.
package idgen
