// Package store holds the contracts of everything that keeps state: the
// message store, which is the authority, and the route store, which can be
// rebuilt from live connections. Drivers live in sub-folders named after their
// technology; storetest is the suite that each of them passes.
//
// Outcomes. A method that changes something and returns an error has changed
// nothing, unless errors.Is(err, ErrUnknownOutcome): then it may have, and the
// caller runs the same call again until it gets a definite answer. All changes
// are keyed so that this is safe.
//
// Errors that a client should hear are *im.Error with a reason; everything
// else is a fault of the store and reaches clients as unavailable.
package store
