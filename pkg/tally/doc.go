// Package tally counts what happens in a cluster minute by minute.
//
// Each process has a Book: what it stored and delivered in each of the last
// minutes, and who is connected to it. The leader of the schedulers asks all
// processes every few seconds and keeps a Ledger, out of which it makes the Tally
// of the whole cluster. It hands the Tally to everyone it asks, and each Book
// keeps it: so any node can show it, and a leader that follows begins with what
// the one before knew.
//
// Nothing here is exact to the message: what a process counted in the last
// seconds before it was killed is lost with it.
package tally
