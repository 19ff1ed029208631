package config

import (
	"fmt"
	"io"
)

// Secret is a value that must not be seen: passwords, keys, connection strings
// with passwords. Every way to print it gives a mask; Reveal gives the value.
// A key of this type has a twin with the suffix _file that names a file to read
// the value from.
type Secret string

// Reveal is the value itself. Hand it to the library that needs it and keep it
// nowhere else.
func (s Secret) Reveal() string { return string(s) }

// String is "(set, 32 bytes)", or "" if there is none.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return fmt.Sprintf("(set, %d bytes)", len(s))
}

// GoString masks %#v.
func (s Secret) GoString() string { return s.String() }

// Format masks every verb, %x and %d among them.
func (s Secret) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		fmt.Fprintf(f, "%q", s.String())
		return
	}
	_, _ = io.WriteString(f, s.String())
}

// MarshalText masks JSON, YAML and structured logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
