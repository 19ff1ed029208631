// Package dedup remembers for a while what the store has acknowledged, so that
// a send that comes again is answered without asking the store.
//
// A send passes through three steps: it is tried (somebody works on it),
// then confirmed (the store has it; the answer is known) or cancelled (the
// store will never have it). The memory of it is a [Cache]. It is never an
// authority: a hit repeats only what the store once acknowledged under the same
// data_epoch, and everything else (a miss, a failure, another content, an
// unreadable value) leaves the decision to the store. So a cache may be empty,
// slow, wrong in type or away, and only speed is lost.
//
// [Circuit] is the rule by which a cache that hangs costs nothing after its
// first few calls.
package dedup
