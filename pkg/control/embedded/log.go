package embedded

import (
	"fmt"
	"runtime"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// fatalError is what etcd said when it would have ended the process.
type fatalError struct {
	message string
	cause   error
}

// Error is etcd's own sentence and its cause.
func (e *fatalError) Error() string {
	if e.cause == nil {
		return e.message
	}
	return fmt.Sprintf("%s: %v", e.message, e.cause)
}

// Unwrap gives the cause.
func (e *fatalError) Unwrap() error { return e.cause }

// serverLog is the logger of the server: errors only, nothing while closing,
// and a report instead of the end of the process.
type serverLog struct {
	base  *zap.Logger
	level zap.AtomicLevel
	fatal chan error // room for the first report; later ones are lost
}

func newServerLog(base *zap.Logger) *serverLog {
	return &serverLog{
		base:  base.Named("etcd"),
		level: zap.NewAtomicLevelAt(zapcore.ErrorLevel),
		fatal: make(chan error, 1),
	}
}

// logger is what the server writes to.
func (l *serverLog) logger() *zap.Logger {
	return l.base.WithOptions(
		zap.WrapCore(func(c zapcore.Core) zapcore.Core { return filter{c, l.level} }),
		zap.WithFatalHook(l), zap.WithPanicHook(l),
	)
}

// quiet ends all logging: a closing server complains about what is normal.
func (l *serverLog) quiet() { l.level.SetLevel(zapcore.InvalidLevel) }

// OnWrite ends the goroutine that reported a fatal error; the rest of the
// server is stopped by whoever reads the report.
func (l *serverLog) OnWrite(ce *zapcore.CheckedEntry, fields []zapcore.Field) {
	e := &fatalError{message: ce.Message}
	for _, f := range fields {
		if f.Type == zapcore.ErrorType {
			e.cause, _ = f.Interface.(error)
		}
	}
	select {
	case l.fatal <- e:
	default:
	}
	runtime.Goexit()
}

// harmless is what every server says at its start: before its first election is
// in the database, about one port for two protocols, and about tokens that only
// members check.
var harmless = map[string]bool{
	"failed to update storage version": true,
	"Running http and grpc server on single port. This is not recommended for production.": true,
	"simple token is not cryptographically signed":                                         true,
}

// filter passes what its own level enables, without the harmless.
type filter struct {
	zapcore.Core
	level zap.AtomicLevel
}

// Enabled reports whether entries of the level are written at all.
func (f filter) Enabled(l zapcore.Level) bool { return f.level.Enabled(l) && f.Core.Enabled(l) }

// Check adds the core to an enabled entry.
func (f filter) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if f.level.Enabled(e.Level) && !harmless[e.Message] {
		return f.Core.Check(e, ce)
	}
	return ce
}

// With keeps the filter on loggers with more fields.
func (f filter) With(fields []zapcore.Field) zapcore.Core {
	return filter{f.Core.With(fields), f.level}
}
