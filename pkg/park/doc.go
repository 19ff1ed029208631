// Package park holds connections that wait for their next byte without a
// goroutine each. A Lot is an epoll set of its own with one goroutine; a Spot is
// one connection's place in it. Where epoll does not exist no connection can be
// parked, and each goes on waiting by itself.
//
// # Rules
//
//   - Who parks a connection reads from it afterwards only after Wake of its
//     Waker was called, and must have nothing of it in a buffer: only bytes that
//     are still in the kernel wake it.
//   - A byte that came before Park wakes it at once.
//   - Each time that it is parked, Wake is called exactly once, by the Lot or by
//     whoever called Spot.Wake.
//   - A descriptor is not duplicated, so closing it takes it out of the set; an
//     event that was under way then is told from those of the next connection
//     with the same number by its generation.
package park
