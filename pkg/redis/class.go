package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/redis/rueidis"

	"github.com/imdhq/imd/pkg/circuit"
)

// classes maps the first word of an error of the server to its class.
var classes = map[string]circuit.Class{
	"OOM":         circuit.Full,
	"READONLY":    circuit.ReadOnly,
	"MISCONF":     circuit.ReadOnly,
	"NOREPLICAS":  circuit.ReadOnly,
	"MOVED":       circuit.Moved,
	"ASK":         circuit.Moved,
	"CLUSTERDOWN": circuit.Moved,
	"TRYAGAIN":    circuit.Moved,
	"CROSSSLOT":   circuit.Moved,
	"WRONGTYPE":   circuit.WrongType,
	"NOAUTH":      circuit.Refused,
	"WRONGPASS":   circuit.Refused,
	"NOPERM":      circuit.Refused,
}

// ClassOf is the class of an error of the client library; "" for nil.
func ClassOf(err error) circuit.Class {
	if err == nil {
		return ""
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		word, rest, _ := strings.Cut(e.Error(), " ")
		if c, ok := classes[word]; ok {
			return c
		}
		if word == "ERR" && strings.Contains(rest, "WRONGTYPE") { // from within a script
			return circuit.WrongType
		}
		return circuit.Other
	}
	var n net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &n) && n.Timeout() {
		return circuit.Timeout
	}
	return circuit.Connection
}

// Classified is err with its class; nil for nil.
func Classified(err error) error {
	if err == nil {
		return nil
	}
	return &circuit.Error{Class: ClassOf(err), Err: err}
}
