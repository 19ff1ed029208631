package module

import "fmt"

// ConfigError is a failure that starting again does not heal: a setting, the
// schema of a database, a key file. The process ends with exit status 78.
type ConfigError struct{ Err error }

// Error is the text of the cause.
func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *ConfigError) Unwrap() error { return e.Err }

// Configf makes a ConfigError.
func Configf(format string, args ...any) error {
	return &ConfigError{Err: fmt.Errorf(format, args...)}
}
