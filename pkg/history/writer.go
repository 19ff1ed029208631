package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// Recorder writes a history into a folder. Safe for concurrent use.
type Recorder struct {
	dir   string
	began time.Time

	mu    sync.Mutex
	files map[string]*file
	err   error // the first failure; later records are dropped
	buf   []byte
}

type file struct {
	f *os.File
	w *bufio.Writer
}

// NewRecorder makes the folder, which must not hold a history yet.
func NewRecorder(dir string) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(dir, "run.json")); err == nil {
		return nil, fmt.Errorf("%s holds a history already", dir)
	}
	return &Recorder{dir: dir, began: time.Now(), files: map[string]*file{}}, nil
}

// Now is the time that records carry.
func (r *Recorder) Now() int64 { return int64(time.Since(r.began)) }

// At is the time t as records carry it.
func (r *Recorder) At(t time.Time) int64 { return int64(t.Sub(r.began)) }

// Add appends a record to a file of the folder. A failure is kept and told by
// Close: a load test must not stop for it.
func (r *Recorder) Add(name string, rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	f := r.files[name]
	if f == nil {
		of, err := os.Create(filepath.Join(r.dir, name))
		if err != nil {
			r.err = err
			return
		}
		f = &file{of, bufio.NewWriterSize(of, 64<<10)}
		r.files[name] = f
	}
	r.buf = appendRecord(r.buf[:0], rec)
	if _, err := f.w.Write(r.buf); err != nil {
		r.err = err
	}
}

// appendRecord writes the same JSON as encoding/json would, in a tenth of the
// time: recording must not be felt in what is measured.
func appendRecord(b []byte, r Record) []byte {
	b = append(b, `{"k":"`...)
	b = append(b, r.Kind...)
	b = append(b, '"')
	num := func(name string, v int64) {
		if v != 0 {
			b = append(b, name...)
			b = strconv.AppendInt(b, v, 10)
		}
	}
	text := func(name, v string) {
		if v != "" {
			b = append(b, name...)
			b = appendString(b, v)
		}
	}
	num(`,"t":`, r.T)
	text(`,"u":`, r.User)
	text(`,"d":`, r.Device)
	text(`,"c":`, r.Conv)
	text(`,"cmid":`, r.CMID)
	num(`,"n":`, r.N)
	text(`,"h":`, r.Hash)
	text(`,"ack":`, r.Ack)
	text(`,"why":`, r.Reason)
	if r.MID != 0 {
		b = append(b, `,"mid":"`...)
		b = strconv.AppendInt(b, r.MID, 10)
		b = append(b, '"')
	}
	num(`,"seq":`, r.Seq)
	num(`,"prev":`, r.Prev)
	num(`,"to":`, r.To)
	if r.Dup {
		b = append(b, `,"dup":true`...)
	}
	text(`,"from":`, r.Sender)
	text(`,"entry":`, r.Entry)
	text(`,"name":`, r.Name)
	if r.Stop {
		b = append(b, `,"stop":true`...)
	}
	return append(b, '}', '\n')
}

// appendString quotes s; ids need no escapes, everything else goes the long way.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			q, _ := json.Marshal(s)
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// Close writes what is buffered and run.json, and tells the first failure.
func (r *Recorder) Close(run Run) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.err
	for _, f := range r.files {
		err = errors.Join(err, f.w.Flush(), f.f.Close())
	}
	run.Ended = int64(time.Since(r.began))
	run.Began = r.began.UTC().Format(time.RFC3339Nano)
	raw, jerr := json.MarshalIndent(run, "", "  ")
	return errors.Join(err, jerr, os.WriteFile(filepath.Join(r.dir, "run.json"), append(raw, '\n'), 0o644))
}
