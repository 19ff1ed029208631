// Package timeline merges one conversation on a device: what is delivered, what
// is read page by page and what was sent from here become one list in order,
// without duplicates, whatever order it comes in.
//
// It is pure. Events go in as method calls that carry the time, and what has to
// be done comes out as Effects. It starts no goroutine, reads no clock and does
// no I/O, so a timeline can be driven by a client, a test or a recorded history
// alike. A Timeline is not safe for concurrent use.
//
// # The rule
//
// A timeline holds have, the seq up to which the device has everything it may
// see. Each entry meets one rule:
//
//	seq <= have             known: drop it, acknowledge again
//	prev_seq <= have < seq  next: show it, have = seq, look at what is aside
//	prev_seq > have         a gap: put it aside, ask for history after have
//
// A number that jumps means nothing by itself; only prev_seq tells a gap.
//
// # Invariants
//
//   - have never goes down, except by a resync or when the log was replaced.
//   - An entry is shown at most once, and seqs of shown entries rise.
//   - Shown entries and the stretches of the log that are complete agree: within
//     a stretch nothing visible is missing.
//   - At most one history request is open, and none while a sync runs.
//   - At most MaxAside entries are aside.
package timeline
