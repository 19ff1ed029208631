package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"

	"connectrpc.com/connect/v2"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/store"
)

// Exit statuses. They are part of what scripts and units rely on.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitNotAllowed  = 4
	exitUnavailable = 5 // trying again may help
	exitConflict    = 6
	exitConfig      = 78 // starting again does not help
	exitInterrupted = 130
)

// failure is an error as the user sees it.
type failure struct {
	Exit      int    `json:"-"`
	Code      string `json:"code"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Hint      string `json:"hint,omitempty"`
	Retryable bool   `json:"retryable"`

	quiet bool // the command has said it all
}

// Error is the message alone.
func (f *failure) Error() string { return f.Message }

// usagef is a command line that cannot be understood.
func usagef(format string, args ...any) *failure {
	return &failure{Exit: exitUsage, Code: "usage", Reason: "usage", Message: fmt.Sprintf(format, args...)}
}

// kinds gives each exit status its code word.
var kinds = map[int]string{
	exitFailed: "failed", exitUsage: "usage", exitNotFound: "not_found", exitNotAllowed: "not_allowed",
	exitUnavailable: "unavailable", exitConflict: "conflict", exitConfig: "configuration", exitInterrupted: "interrupted",
}

func newFailure(exit int, reason, message, hint string) *failure {
	return &failure{Exit: exit, Code: kinds[exit], Reason: reason, Message: message, Hint: hint, Retryable: exit == exitUnavailable}
}

// configCauses are errors of other packages that mean a wrong configuration.
var configCauses = []error{store.ErrSchema, store.ErrClock, store.ErrDSN, store.ErrUnsafe, store.ErrUnfinished}

// said are kinds of errors whose sentence, in front of them, says all.
var said = append([]error{store.ErrCorrupt, store.ErrReadOnly, store.ErrFull, store.ErrLocked}, configCauses...)

// plainText is the text of err without the kind behind a sentence for the operator.
func plainText(err error) string {
	text := err.Error()
	for _, kind := range said {
		if errors.Is(err, kind) {
			text = strings.TrimSuffix(text, ": "+kind.Error())
		}
	}
	return text
}

// classify finds out what an error means to the user.
func classify(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	var bad *config.Error
	var conf *module.ConfigError
	if errors.As(err, &bad) || errors.As(err, &conf) {
		return newFailure(exitConfig, "configuration", plainText(err), "")
	}
	for _, cause := range configCauses {
		if errors.Is(err, cause) {
			return newFailure(exitConfig, "configuration", plainText(err), "")
		}
	}
	var used *datadir.InUseError
	if errors.As(err, &used) {
		return newFailure(exitFailed, "in_use", used.Error(), "")
	}
	var e *im.Error
	var ce *connect.Error
	if errors.As(err, &e) || errors.As(err, &ce) {
		return fromServer(im.FromConnect("", err))
	}
	return fromSystem(err)
}

// ownFailure is why a node ended. What it waited for in vain is a failure of the
// node: the words that a client command has for a server that does not answer
// would name the wrong one.
func ownFailure(err error) error {
	if err == nil {
		return nil
	}
	if f := classify(err); f.Exit != exitUnavailable && f.Exit != exitNotFound {
		return f
	}
	return newFailure(exitFailed, "failed", plainText(err), "")
}

// ofDatabase is the error of a command that goes to a database by itself. If it
// did not answer, the words that a client command has for a node would name the
// wrong one.
func ofDatabase(err error) error {
	if err == nil {
		return nil
	}
	if f := classify(err); f.Exit != exitUnavailable {
		return f
	}
	return newFailure(exitUnavailable, "unreachable", plainText(err), "")
}

// fromServer is an answer of a node.
func fromServer(e *im.Error) *failure {
	info := im.Info(e.Reason)
	exit := exitFailed
	switch info.Code {
	case "not_found":
		exit = exitNotFound
	case "unauthenticated", "permission_denied":
		exit = exitNotAllowed
	case "unavailable", "deadline_exceeded", "resource_exhausted":
		exit = exitUnavailable
	case "already_exists", "aborted", "failed_precondition":
		exit = exitConflict
	}
	if other := otherListener(e.Msg); other != nil {
		return other
	}
	f := newFailure(exit, im.ReasonName(e.Reason), e.Msg, "")
	if f.Message == "" {
		f.Message = info.Meaning
	}
	var op *net.OpError
	if errors.As(e, &op) || errors.Is(e, syscall.ECONNREFUSED) {
		f.Message, f.Hint = "the server cannot be reached: "+cause(e), "is it running? see imd check ready"
	}
	f.Retryable = info.Retryable || exit == exitUnavailable
	return f
}

// otherListener is the failure if the text is what a web server says that does
// not know the call: the listener for clients and that for operators are two. Else nil.
func otherListener(text string) *failure {
	if !strings.HasPrefix(text, "404 ") && !strings.HasPrefix(text, "405 ") {
		return nil
	}
	return newFailure(exitFailed, "other_listener", "what answers there does not know this call",
		"nodes, keys and settings are asked for at the ops listener, messages at the public one")
}

// fromSystem is an error of this machine.
func fromSystem(err error) *failure {
	switch {
	case errors.Is(err, context.Canceled):
		return newFailure(exitInterrupted, "interrupted", "interrupted", "")
	case errors.Is(err, context.DeadlineExceeded):
		return newFailure(exitUnavailable, "timeout", "no answer in time", "give more with --timeout")
	case errors.Is(err, fs.ErrNotExist):
		return newFailure(exitNotFound, "not_found", err.Error(), "")
	}
	if f := notReached(err); f != nil {
		return f
	}
	return newFailure(exitFailed, "failed", plainText(err), "")
}

// notReached is the failure if nothing listens at the server's address, or if its
// name has none. Else nil.
func notReached(err error) *failure {
	var op *net.OpError
	var name *net.DNSError
	switch {
	case errors.As(err, &op) && op.Op == "dial":
		return newFailure(exitUnavailable, "unreachable", "the server cannot be reached: "+cause(err), "is it running? see imd check ready")
	case errors.As(err, &name):
		return newFailure(exitUnavailable, "unreachable", err.Error(), "")
	}
	return nil
}

// cause is the innermost network error, without the layers around it.
func cause(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Error()
	}
	return err.Error()
}

// print writes the failure to w, as JSON or as at most a few lines.
func (f *failure) print(w io.Writer, asJSON bool) {
	if asJSON {
		data, _ := json.Marshal(map[string]*failure{"error": f})
		fmt.Fprintf(w, "%s\n", data)
		return
	}
	if f.quiet {
		return
	}
	fmt.Fprintf(w, "imd: %s\n", strings.TrimRight(f.Message, "\n"))
	if f.Hint != "" {
		fmt.Fprintf(w, "  %s\n", f.Hint)
	}
}
