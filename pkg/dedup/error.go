package dedup

import "github.com/imdhq/imd/pkg/circuit"

// Class says what kind of trouble a cache is in.
type Class = circuit.Class

// The classes.
const (
	Open       = circuit.Open
	Busy       = circuit.Busy
	Timeout    = circuit.Timeout
	Connection = circuit.Connection
	Refused    = circuit.Refused
	Full       = circuit.Full
	ReadOnly   = circuit.ReadOnly
	Moved      = circuit.Moved
	WrongType  = circuit.WrongType
	Other      = circuit.Other
)

// Classes lists all classes.
func Classes() []Class { return circuit.Classes() }

// Error is the failure of a cache. It costs speed only.
type Error = circuit.Error

// ClassOf is the class of err: "" for nil, Other if it has none.
func ClassOf(err error) Class { return circuit.ClassOf(err) }
