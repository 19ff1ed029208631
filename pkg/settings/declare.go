package settings

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/config"
)

// Kind is the type of a setting, as documents call it.
type Kind string

// The kinds.
const (
	KindInt      Kind = "whole number"
	KindDuration Kind = "duration"
	KindFloat    Kind = "number"
	KindBool     Kind = "true or false"
	KindWord     Kind = "word"
)

// Declaration is everything that is known about a setting. It is immutable.
type Declaration struct {
	Key      string // "gateway.ping_interval"; the part before the first dot is the section
	Kind     Kind
	Default  string // as text
	Range    string // "100ms to 10m", "multi, kick_old, reject_new"; "" = any
	Unit     string // of numbers: "sends/s"; "" = none or part of the value
	Sentence string
	// Shrink is by what factor one change may make the value smaller; 0 = any.
	Shrink float64

	def   any
	parse func(text string) (any, error) // of the kind and within the range
	text  func(v any) string
	size  func(v any) float64 // for Shrink; nil = it has none
}

// Section is the document that holds the setting.
func (d *Declaration) Section() string {
	section, _, _ := strings.Cut(d.Key, ".")
	return section
}

// Canonical checks a value and gives it in the form in which it is stored. The
// error says what would be right, without the key.
func (d *Declaration) Canonical(text string) (string, error) {
	v, err := d.parse(text)
	if err != nil {
		return "", err
	}
	return d.text(v), nil
}

// Declared is any Setting.
type Declared interface{ Declaration() *Declaration }

// Setting is a declared setting of type T. Make it with Int, Duration, Float,
// Bool or Word, as a package variable next to the code that reads it.
type Setting[T comparable] struct{ d *Declaration }

// Declaration is what is known about the setting.
func (s Setting[T]) Declaration() *Declaration { return s.d }

// Or is the value in force: that of the snapshot if anybody set one, else
// start, the value that the node's configuration gives. A nil snapshot has set
// nothing.
func (s Setting[T]) Or(in *Snapshot, start T) T {
	if e, ok := in.Get(s.d.Key); ok {
		return e.value.(T)
	}
	return start
}

// In is Or for a setting without a place in the configuration: the declared
// default is its start value.
func (s Setting[T]) In(in *Snapshot) T { return s.Or(in, s.d.def.(T)) }

// Option adds to a declaration.
type Option func(*Declaration)

// Unit names what a number counts.
func Unit(unit string) Option { return func(d *Declaration) { d.Unit = unit } }

// Shrink lets one change make the value smaller by at most this factor, for
// values where a typing error would hit everybody at once.
func Shrink(factor float64) Option { return func(d *Declaration) { d.Shrink = factor } }

// Int declares a whole number from low to high.
func Int(key string, def, low, high int, sentence string, opts ...Option) Setting[int] {
	d := &Declaration{
		Key: key, Kind: KindInt, Sentence: sentence, def: def, Range: fmt.Sprintf("%d to %d", low, high),
		text: func(v any) string { return strconv.Itoa(v.(int)) },
		size: func(v any) float64 { return float64(v.(int)) },
		parse: func(s string) (any, error) {
			n, err := strconv.Atoi(s)
			if err != nil {
				return nil, fmt.Errorf("%.64q is not a whole number", s)
			}
			return within(n, low, high, s)
		},
	}
	return declare[int](d, opts)
}

// Duration declares a span of time from low to high.
func Duration(key string, def, low, high time.Duration, sentence string, opts ...Option) Setting[time.Duration] {
	d := &Declaration{
		Key: key, Kind: KindDuration, Sentence: sentence, def: def, Range: config.Text(low) + " to " + config.Text(high),
		text: func(v any) string { return config.Text(v) },
		size: func(v any) float64 { return float64(v.(time.Duration)) },
		parse: func(s string) (any, error) {
			v, err := time.ParseDuration(s)
			if err != nil {
				return nil, fmt.Errorf("%.64q is not a duration such as 30s, 500ms or 1h30m", s)
			}
			return within(v, low, high, s)
		},
	}
	return declare[time.Duration](d, opts)
}

// Float declares a number from low to high.
func Float(key string, def, low, high float64, sentence string, opts ...Option) Setting[float64] {
	text := func(v any) string { return strconv.FormatFloat(v.(float64), 'f', -1, 64) }
	d := &Declaration{
		Key: key, Kind: KindFloat, Sentence: sentence, def: def, Range: text(low) + " to " + text(high),
		text: text,
		size: func(v any) float64 { return v.(float64) },
		parse: func(s string) (any, error) {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || math.IsNaN(v) {
				return nil, fmt.Errorf("%.64q is not a number", s)
			}
			return within(v, low, high, s)
		},
	}
	return declare[float64](d, opts)
}

// Bool declares a switch.
func Bool(key string, def bool, sentence string, opts ...Option) Setting[bool] {
	d := &Declaration{
		Key: key, Kind: KindBool, Sentence: sentence, def: def,
		text: func(v any) string { return strconv.FormatBool(v.(bool)) },
		parse: func(s string) (any, error) {
			switch strings.ToLower(s) {
			case "true", "yes", "on":
				return true, nil
			case "false", "no", "off":
				return false, nil
			}
			return nil, fmt.Errorf("%.64q is not true or false", s)
		},
	}
	return declare[bool](d, opts)
}

// Word declares a choice between words.
func Word(key, def string, words []string, sentence string, opts ...Option) Setting[string] {
	d := &Declaration{
		Key: key, Kind: KindWord, Sentence: sentence, def: def, Range: strings.Join(words, ", "),
		text: func(v any) string { return v.(string) },
		parse: func(s string) (any, error) {
			if slices.Contains(words, s) {
				return s, nil
			}
			hint := ""
			if n := config.Nearest(s, words); n != "" {
				hint = "; did you mean " + n + "?"
			}
			return nil, fmt.Errorf("%.64q is none of %s%s", s, strings.Join(words, ", "), hint)
		},
	}
	return declare[string](d, opts)
}

func declare[T comparable](d *Declaration, opts []Option) Setting[T] {
	for _, o := range opts {
		o(d)
	}
	d.Default = d.text(d.def)
	return Setting[T]{d}
}

func within[T cmp.Ordered](v, low, high T, text string) (any, error) {
	if v < low || v > high {
		return nil, fmt.Errorf("%s is not within %v and %v", text, low, high)
	}
	return v, nil
}

// Rule is a condition on several settings. It is judged for every combination
// of scopes that a document can bring about, with the declared defaults where
// nothing is set.
type Rule struct {
	keys []*Declaration
	hold func(v func(*Declaration) any) error
}

// Below demands that a is less than b everywhere.
func Below[T cmp.Ordered](a, b Setting[T]) Rule {
	return Rule{keys: []*Declaration{a.d, b.d}, hold: func(v func(*Declaration) any) error {
		va, vb := v(a.d), v(b.d)
		if va.(T) < vb.(T) {
			return nil
		}
		return fmt.Errorf("%s must be below %s, but they would be %s and %s", a.d.Key, b.d.Key, a.d.text(va), b.d.text(vb))
	}}
}

// Schema is what one module declares.
type Schema struct {
	Keys  []Declared
	Rules []Rule
}

// checkDeclaration finds mistakes of the programmer.
func checkDeclaration(d *Declaration) error {
	section, rest, ok := strings.Cut(d.Key, ".")
	if !ok || section == "" || rest == "" || strings.Trim(d.Key, "abcdefghijklmnopqrstuvwxyz0123456789._") != "" {
		return fmt.Errorf("settings: key %q is not section.name in lower case", d.Key)
	}
	if !strings.HasSuffix(d.Sentence, ".") {
		return fmt.Errorf("settings: %s: the sentence has no end", d.Key)
	}
	if _, err := d.Canonical(d.Default); err != nil {
		return fmt.Errorf("settings: %s: the default: %w", d.Key, err)
	}
	if d.Shrink != 0 && (d.Shrink <= 1 || d.size == nil) {
		return errors.New("settings: " + d.Key + ": the factor must be above 1, and the value a number")
	}
	return nil
}
