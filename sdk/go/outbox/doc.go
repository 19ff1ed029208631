// Package outbox keeps what a device sends until it is known to be stored or
// refused for good, and keeps it in order over refusals and over connections.
//
// It is pure. What happens goes in as method calls that carry the time; what may
// be written comes out of Next and Write. It starts no goroutine, reads no clock
// and does no I/O.
//
// # The rules
//
//   - A message leaves with its ACK_OK, with its ACK_FAIL, or when its entry is
//     seen in the log.
//   - After a refusal that may be tried again, the conversation goes on from the
//     refused message, in order, with the same ids. Answers to the copies of
//     before are known by their frame and ignored, save ACK_OK.
//   - Conversations do not wait for each other.
//   - At most protocol.ClientSendWindow messages are without an answer.
//   - A new connection writes all of it again, in order.
package outbox
