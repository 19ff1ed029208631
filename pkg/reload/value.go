package reload

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// recheck is how often the files are looked at for changes.
const recheck = time.Second

// Source says what is read, and from where.
type Source[T any] struct {
	// Paths are the files.
	Paths []string
	// Load reads them. It is called by one goroutine at a time.
	Load func() (T, error)
	// Now is the clock.
	Now func() time.Time
	// Warn is told why changed files cannot be used: once for each change of them
	// or of the reason.
	Warn func(error)
}

// Value is something that is read from files. Safe for concurrent use.
type Value[T any] struct {
	Source[T]

	mu      sync.Mutex
	value   T
	last    seen
	looked  time.Time
	looking bool // somebody looks at the files; the others take what there is
}

// seen is how the files were when somebody looked, and why they could not be used;
// nil = they could.
type seen struct {
	stamp string
	err   error
}

// Read reads the files for the first time. The error is that of Load.
func Read[T any](s Source[T]) (*Value[T], error) {
	v := &Value[T]{Source: s}
	v.last.stamp, v.looked = v.stamps(), s.Now()
	var err error
	if v.value, err = s.Load(); err != nil {
		return nil, err
	}
	return v, nil
}

// Get is the value, of files that were looked at within the last second.
func (v *Value[T]) Get() T {
	now, _ := v.Look()
	return now
}

// Look is Get, and tells whether the files have changed since into something
// that cannot be used. Who finds that they are due looks at them; the others do not
// wait for that, and get what was read last.
func (v *Value[T]) Look() (value T, bad bool) {
	if last, due := v.begin(); due {
		v.look(last)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.last.err != nil
}

// begin reports whether the caller is to look at the files, and how they were last
// time.
func (v *Value[T]) begin() (last seen, due bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now := v.Now()
	if v.looking || now.Sub(v.looked) < recheck {
		return seen{}, false
	}
	v.looking, v.looked = true, now
	return v.last, true
}

// look reads the files if they have changed, or could not be used: what was in the
// way, such as permissions, may go without a change of them.
func (v *Value[T]) look(last seen) {
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.looking = false
	}()
	stamp := v.stamps()
	if stamp == last.stamp && last.err == nil {
		return
	}
	next, err := v.Load()
	if err != nil && (stamp != last.stamp || last.err == nil || err.Error() != last.err.Error()) {
		v.Warn(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.last = seen{stamp, err}
	if err == nil {
		v.value = next
	}
}

// stamps changes when one of the files does.
func (v *Value[T]) stamps() string {
	var b strings.Builder
	for _, p := range v.Paths {
		if info, err := os.Stat(p); err == nil {
			fmt.Fprintf(&b, "%d %d\n", info.ModTime().UnixNano(), info.Size())
		} else {
			b.WriteString("-\n")
		}
	}
	return b.String()
}
