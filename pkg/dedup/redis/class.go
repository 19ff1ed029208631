package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"

	"github.com/redis/rueidis"

	"github.com/imdhq/imd/pkg/dedup"
)

// classes maps the first word of an error of the server to its class.
var classes = map[string]dedup.Class{
	"OOM":         dedup.Full,
	"READONLY":    dedup.ReadOnly,
	"MISCONF":     dedup.ReadOnly,
	"NOREPLICAS":  dedup.ReadOnly,
	"MOVED":       dedup.Moved,
	"ASK":         dedup.Moved,
	"CLUSTERDOWN": dedup.Moved,
	"TRYAGAIN":    dedup.Moved,
	"CROSSSLOT":   dedup.Moved,
	"WRONGTYPE":   dedup.WrongType,
	"NOAUTH":      dedup.Refused,
	"WRONGPASS":   dedup.Refused,
	"NOPERM":      dedup.Refused,
}

// classOf is the class of an error of the client library; "" for nil.
func classOf(err error) dedup.Class {
	if err == nil {
		return ""
	}
	if e, ok := rueidis.IsRedisErr(err); ok {
		word, rest, _ := strings.Cut(e.Error(), " ")
		if c, ok := classes[word]; ok {
			return c
		}
		if word == "ERR" && strings.Contains(rest, "WRONGTYPE") { // from within a script
			return dedup.WrongType
		}
		return dedup.Other
	}
	var n net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &n) && n.Timeout() {
		return dedup.Timeout
	}
	return dedup.Connection
}

// classified is err with its class; nil for nil.
func classified(err error) error {
	if err == nil {
		return nil
	}
	return &dedup.Error{Class: classOf(err), Err: err}
}
