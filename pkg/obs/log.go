package obs

import (
	"fmt"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// LogConfig is the section "log".
type LogConfig struct {
	// Level is the lowest level that is written.
	Level string `mapstructure:"level" doc:"Lowest level that is written: debug, info, warn or error. Default info."`
	// Format is how a line looks.
	Format string `mapstructure:"format" doc:"auto, json or console. auto is console on a terminal and json elsewhere. Default auto."`
}

// DefaultLogConfig is what an empty file means.
func DefaultLogConfig() LogConfig { return LogConfig{Level: "info", Format: "auto"} }

// Validate reports every problem at once, each with its key.
func (c LogConfig) Validate() error {
	if _, err := zapcore.ParseLevel(c.Level); err != nil || c.Level == "" {
		return fmt.Errorf("log.level: %q is none of debug, info, warn, error", c.Level)
	}
	switch c.Format {
	case "auto", "json", "console":
		return nil
	}
	return fmt.Errorf("log.format: %q is none of auto, json, console", c.Format)
}

// Terminal reports whether f is a terminal.
func Terminal(f *os.File) bool { return isatty.IsTerminal(f.Fd()) }

// NewLogger writes to f, which is standard error except in tests. The level
// can be changed while the process runs. Of equal messages at debug and info
// level it writes the first 100 in a second and then every hundredth.
func NewLogger(c LogConfig, f *os.File) (*zap.Logger, zap.AtomicLevel, error) {
	level, err := zapcore.ParseLevel(c.Level)
	if err != nil {
		return nil, zap.AtomicLevel{}, fmt.Errorf("log.level: %w", err)
	}
	atom := zap.NewAtomicLevelAt(level)
	out := zapcore.Lock(f)
	console := c.Format == "console" || c.Format == "auto" && Terminal(f)
	enc := encoder(console, Terminal(f) && os.Getenv("NO_COLOR") == "")
	quiet := zapcore.NewSamplerWithOptions(
		zapcore.NewCore(enc, out, both(atom, func(l zapcore.Level) bool { return l < zapcore.WarnLevel })), second, 100, 100)
	loud := zapcore.NewCore(enc, out, both(atom, func(l zapcore.Level) bool { return l >= zapcore.WarnLevel }))
	return zap.New(zapcore.NewTee(quiet, loud)), atom, nil
}

// Counted is log, with its warnings and errors counted in
// imd_log_lines_total{level}, so that an alarm can be raised on them. Call it
// once for a registry.
func Counted(log *zap.Logger, reg prometheus.Registerer) *zap.Logger {
	lines := prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "imd", Subsystem: "log", Name: "lines_total", Help: "Warnings and errors in the log.",
	}, []string{"level"})
	reg.MustRegister(lines)
	warnings, errors := lines.WithLabelValues("warn"), lines.WithLabelValues("error")
	return log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
		switch {
		case e.Level >= zapcore.ErrorLevel:
			errors.Inc()
		case e.Level == zapcore.WarnLevel:
			warnings.Inc()
		}
		return nil
	}))
}

func both(atom zap.AtomicLevel, part func(zapcore.Level) bool) zapcore.LevelEnabler {
	return zap.LevelEnablerFunc(func(l zapcore.Level) bool { return atom.Enabled(l) && part(l) })
}

func encoder(console, color bool) zapcore.Encoder {
	c := zapcore.EncoderConfig{
		TimeKey: "time", LevelKey: "level", NameKey: "module", MessageKey: "msg", StacktraceKey: "stack",
		LineEnding: zapcore.DefaultLineEnding, EncodeLevel: zapcore.LowercaseLevelEncoder, EncodeTime: zapcore.RFC3339NanoTimeEncoder,
		EncodeDuration: zapcore.StringDurationEncoder, EncodeName: zapcore.FullNameEncoder,
	}
	if !console {
		return zapcore.NewJSONEncoder(c)
	}
	c.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	c.ConsoleSeparator = " "
	if color {
		c.EncodeLevel = zapcore.LowercaseColorLevelEncoder
	}
	return zapcore.NewConsoleEncoder(c)
}
