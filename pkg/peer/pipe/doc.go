// Package pipe carries unary Connect calls between two processes over few
// long-lived connections. It is a connect.Transport on the calling side, and an
// http.Handler in front of a connect.Server on the other: clients, handlers,
// interceptors and errors are those of Connect. A call is one frame there and one
// back, and what is ready at the same time leaves in one write; a request over
// HTTP/2 would be two or three frames, each through several goroutines.
//
// # Connections
//
// A connection begins as a request of HTTP/1.1 with "Upgrade: imd-pipe". Then
// each side sends a greeting: the caller names the process that it wants, by its
// boot id, and brings a nonce; the callee brings another and proves that it has
// the key of the cluster, or says why it refuses. With TLS the certificates are
// the proof. There are two connections to a process: one for methods with side
// effects, one for reads, so that a long page does not hold up a message.
//
// # Frames
//
// Four bytes of length, then the kind, the number of the call, what belongs to
// the kind, and without TLS 16 bytes that prove the frame and its place in the
// order. Kinds: call, answer, refusal, denial,
// cancel, ping, pong, leave.
//
// # Invariants
//
//   - Each call ends: by its answer, by its context, or because the connection
//     ended. The callee's context ends with the caller's, or with the connection.
//   - The deadline goes along; a call that is late is not begun.
//   - A connection that is silent for 7 s, or takes nothing for 400 ms of
//     writing, is given up. What was in flight on it fails as unavailable.
//   - What waits to be written is bounded; a call that does not fit fails.
//   - A callee that stops says so: no new calls come, what is in flight is
//     answered.
//
// Headers of the request travel; those of the answer do not.
package pipe
