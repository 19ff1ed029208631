package witness

import (
	"strconv"
	"time"

	"github.com/imdhq/imd/pkg/settings"
)

// The two settings of different sections that hold the number of a change. What
// they set matters to nobody: the number is a small part of it.
const (
	oneKey   = "gateway.redeliver_after"
	otherKey = "rate.factor"

	oneBase   = 3 * time.Second // plus the number in microseconds
	otherBase = 1_000_000       // plus the number, in millionths
)

// Documents are the sections that make a change with this number. With wrong the
// second one holds what every node must refuse.
func Documents(n int64, wrong bool) map[string]string {
	one := (oneBase + time.Duration(n)*time.Microsecond).String()
	other := strconv.FormatFloat(float64(otherBase+n)/otherBase, 'f', 6, 64)
	if wrong {
		other = "-1"
	}
	change := settings.Change{Number: int(n), By: "drill"}
	return map[string]string{
		"gateway": string(settings.Document{All: map[string]string{oneKey: one}, Change: change}.Encode()),
		"rate":    string(settings.Document{All: map[string]string{otherKey: other}, Change: change}.Encode()),
	}
}

// Keys are the two settings.
func Keys() []string { return []string{oneKey, otherKey} }

// Numbers are those of the changes that the two settings belong to, given their
// values by key as text; 0 = it is not set by a change.
func Numbers(values map[string]string) (one, other int64) {
	if d, err := time.ParseDuration(values[oneKey]); err == nil {
		one = max(int64((d-oneBase)/time.Microsecond), 0)
	}
	if f, err := strconv.ParseFloat(values[otherKey], 64); err == nil {
		other = max(int64(f*otherBase+0.5)-otherBase, 0)
	}
	return one, other
}
