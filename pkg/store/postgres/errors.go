package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Codes of the server that mean something here.
const (
	codeLockTimeout = "55P03"
	codeDeadlock    = "40P01"
	codeUnique      = "23505"
	codeToMake      = "IM001" // of imd_append_transaction
	codeFenced      = "IM002" // of imd_prove
	codeOvertaken   = "IM003" // of imd_append_segment
	codeDisplaced   = "IM004" // of imd_sessions
	codeFollowed    = "IM005" // of imd_claim_scheduled
	codeReadOnly    = "25006"
	codeDiskFull    = "53100"
	codeCorrupt     = "XX001"
	codeCorruptIdx  = "XX002"
	codeNoTable     = "42P01"
	codeNoRoom      = "53300"
	codeDropped     = "57P04" // the database was dropped
)

// codeOf is the server's code of err; "" if it is no answer of a server.
func codeOf(err error) string {
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// cause names what a failure means; nil if it has no name.
func cause(err error) error {
	switch codeOf(err) {
	case codeDiskFull:
		return store.ErrFull
	case codeReadOnly:
		return store.ErrReadOnly
	case codeCorrupt, codeCorruptIdx:
		return store.ErrCorrupt
	}
	return nil
}

// away reports whether a server that could not be connected to may be there later
// without anybody's doing: it did not answer, or said that it starts, stops or is full.
// A server whose certificate is not trusted is none of these, nor is one whose database
// was dropped. PgBouncer says with a protocol violation that the server behind it is away.
func away(err error) bool {
	if code := codeOf(err); code != "" {
		return code == codeNoRoom || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P") && code != codeDropped
	}
	if errors.As(err, new(*tls.CertificateVerificationError)) || errors.As(err, new(tls.AlertError)) {
		return false
	}
	var n net.Error
	return errors.As(err, &n) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// doubtful reports whether a call that failed with err after it was sent may
// have made its change. An error that the server ended the statement with undid
// everything; one that ended the session may have come after the commit.
func doubtful(err error) bool {
	if e := (*im.Error)(nil); errors.As(err, &e) || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, store.ErrFenced) || errors.Is(err, errCreatedMeanwhile) {
		return false // said by us, before anything was committed
	}
	if e := (*overtaken)(nil); errors.As(err, &e) {
		return false
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return e.Severity == "FATAL" || e.Severity == "PANIC" || e.SeverityUnlocalized == "FATAL" ||
			e.SeverityUnlocalized == "PANIC" || strings.HasPrefix(e.Code, "08") || strings.HasPrefix(e.Code, "57P")
	}
	return !pgconn.SafeToRetry(err)
}

// gone reports whether the server ended the connection, or is no more.
func gone(err error) bool {
	if err == nil {
		return false
	}
	if e := (*pgconn.PgError)(nil); errors.As(err, &e) {
		return strings.HasPrefix(e.Code, "57P")
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// spoiled reports whether the server refused what a row contains.
func spoiled(err error) bool { return strings.HasPrefix(codeOf(err), "22") }

// unreachable marks a failure before anything was sent.
type unreachable struct{ err error }

func (u *unreachable) Error() string { return oneLine(u.err) }
func (u *unreachable) Unwrap() error { return u.err }

// oneLine is the text of a failure to connect, which has a line for each try, on
// one: what was said last at each address, as each may be tried with and without TLS.
func oneLine(err error) string {
	first, tries, many := strings.Cut(err.Error(), "\n")
	if !many {
		if failed := (*pgconn.ConnectError)(nil); errors.As(err, &failed) { // its name of the database is told already
			first = failed.Unwrap().Error()
		}
		return strings.TrimSpace(first)
	}
	var addresses []string
	last := map[string]string{}
	for line := range strings.Lines(tries) {
		line = strings.TrimSpace(line)
		address, _, _ := strings.Cut(line, " ")
		if _, known := last[address]; !known {
			addresses = append(addresses, address)
		}
		last[address] = line
	}
	for i, address := range addresses {
		addresses[i] = last[address]
	}
	return strings.Join(addresses, "; ")
}

// unsure marks a call that may have made its change.
func unsure(err error) error { return fmt.Errorf("%w: %w", store.ErrUnknownOutcome, err) }

// fault is how a failure of the store leaves an open store: unavailable to
// clients, with the cause for the log. Errors that a client should hear, ended
// contexts and the port's own words pass unchanged.
func fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*im.Error)(nil); errors.As(err, &e) {
		return err
	}
	switch busy := (*store.BusyConversationError)(nil); {
	case errors.Is(err, store.ErrUnknownOutcome):
	case errors.As(err, &busy):
		return err
	case errors.Is(err, store.ErrNotFound), errors.Is(err, store.ErrFenced), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case spoiled(err):
		return &im.Error{Reason: clientv1.Reason_REASON_BAD_REQUEST, Op: op, Msg: "it contains what the message store cannot keep", Err: err}
	}
	if c := cause(err); c != nil && !errors.Is(err, c) {
		err = fmt.Errorf("%w: %w", c, err)
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "the message store cannot do this now", Err: err}
}

// missing turns "no row" into the port's word.
func missing(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return store.ErrNotFound
	}
	return err
}

// refuse is an error that a client hears.
func refuse(r im.Reason, op, format string, args ...any) *im.Error {
	return im.Errorf(r, op, format, args...)
}
