// Package outbox tells receivers outside what has happened, from the events that
// the message store keeps.
//
// A Window decides what one receiver is told next: events of one conversation one
// after the other, those of different ones beside each other, with pauses after
// failures, and at last a dead letter. It touches nothing and can be simulated. A
// Runner is a Window with a store and a way to send. Runners share nothing, so
// that one receiver that hangs delays no other.
package outbox
