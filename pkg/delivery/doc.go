// Package delivery keeps the books of one connection about what was delivered
// on it: what waits for an ack and is delivered again, and how far the device
// has been told of each conversation. It has no clock, no lock and no socket.
package delivery
