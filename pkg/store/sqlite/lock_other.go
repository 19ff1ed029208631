//go:build !unix

package sqlite

import "os"

// lockFile does nothing where there are no advisory locks: the lock on the
// data folder has to do.
func lockFile(*os.File) error { return nil }
