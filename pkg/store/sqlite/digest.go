package sqlite

import (
	"database/sql/driver"
	"fmt"

	"modernc.org/sqlite"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// digestFunction sums up the heads of conversations in a query: its arguments are
// a conversation id and a head.
const digestFunction = "imd_digest"

func init() {
	sqlite.MustRegisterFunction(digestFunction, &sqlite.FunctionImpl{
		NArgs: 2, Deterministic: true, VolatileArgs: true, // no argument is kept
		MakeAggregate: func(sqlite.FunctionContext) (sqlite.AggregateFunction, error) { return new(digest), nil },
	})
}

// digest is a sum that grows row by row.
type digest struct{ sum uint64 }

// Step is sqlite.AggregateFunction's.
func (d *digest) Step(_ *sqlite.FunctionContext, args []driver.Value) error {
	conv, ok := args[0].(string)
	head, isInt := args[1].(int64)
	if !ok || !isInt {
		return fmt.Errorf("a digest of %T and %T", args[0], args[1])
	}
	d.sum += protocol.DigestTerm(conv, head)
	return nil
}

// WindowInverse is sqlite.AggregateFunction's.
func (d *digest) WindowInverse(_ *sqlite.FunctionContext, args []driver.Value) error {
	conv, _ := args[0].(string)
	head, _ := args[1].(int64)
	d.sum -= protocol.DigestTerm(conv, head)
	return nil
}

// WindowValue is sqlite.AggregateFunction's.
func (d *digest) WindowValue(*sqlite.FunctionContext) (driver.Value, error) {
	return int64(d.sum), nil
}

// Final is sqlite.AggregateFunction's.
func (d *digest) Final(*sqlite.FunctionContext) {}
