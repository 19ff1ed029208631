package config

import (
	"fmt"
	"strings"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Where   string `json:"where,omitempty"` // "imd.yaml:12", "IMD_LOG_LEVEL", "--listen"; "" = the configuration as a whole
	Key     string `json:"key,omitempty"`   // "gateway.listen"
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // what to do; "" = nothing to add
}

// String is the problem on one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Where != "" {
		b.WriteString(p.Where + ": ")
	}
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Message)
	if p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	return b.String()
}

// Error is a configuration that cannot be used. The process ends with exit
// status 78, because starting it again does not help.
type Error struct{ Problems []Problem }

// Error lists all problems, one a line.
func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, fmt.Sprintf("the configuration has %d problems", len(e.Problems)))
	for _, p := range e.Problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}

// Errorf is a configuration error about one key; key may be "".
func Errorf(key, format string, args ...any) *Error {
	return &Error{Problems: []Problem{{Key: key, Message: fmt.Sprintf(format, args...)}}}
}
