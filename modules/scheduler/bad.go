//go:build !drill

package scheduler

import "context"

// ofTerm is the context of a term's jobs: that of the term.
func ofTerm(ctx context.Context) context.Context { return ctx }
