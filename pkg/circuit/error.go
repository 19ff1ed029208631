package circuit

import "errors"

// Class says what kind of trouble a server is in.
type Class string

// The classes.
const (
	Open       Class = "open"       // not asked, as it did not answer lately
	Busy       Class = "busy"       // not asked, as too many calls are on their way
	Timeout    Class = "timeout"    // no answer in time
	Connection Class = "connection" // not reached, or the connection broke
	Refused    Class = "refused"    // it does not let us in
	Full       Class = "full"       // no memory left there
	ReadOnly   Class = "readonly"   // it does not take writes
	Moved      Class = "moved"      // another node of its cluster has the key, or none has
	WrongType  Class = "wrongtype"  // a key holds something that is not ours
	Other      Class = "other"
)

// Classes lists all classes.
func Classes() []Class {
	return []Class{Open, Busy, Timeout, Connection, Refused, Full, ReadOnly, Moved, WrongType, Other}
}

// Silent reports whether the class means that the server did not answer, and may
// not answer the next call either.
func (c Class) Silent() bool { return c == Timeout || c == Connection }

// Error is the failure of a call.
type Error struct {
	Class Class
	Err   error // the cause, for the log; may be nil
}

// Error is the class and the cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return string(e.Class)
	}
	return string(e.Class) + ": " + e.Err.Error()
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf is the class of err: "" for nil, Other if it has none.
func ClassOf(err error) Class {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Class
	}
	return Other
}
