package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Read reads a folder and calls f for each record, file by file. Errors name
// the file and the line.
func Read(dir string, f func(file string, r *Record) error) (Run, error) {
	var run Run
	raw, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil {
		return run, fmt.Errorf("%s holds no history: %w", dir, err)
	}
	if err := json.Unmarshal(raw, &run); err != nil {
		return run, fmt.Errorf("%s: %w", filepath.Join(dir, "run.json"), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return run, err
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".ops") || strings.HasSuffix(name, ".view") || strings.HasSuffix(name, ".log") || name == "db.final" || name == "members.final" {
			if err := readFile(filepath.Join(dir, name), name, f); err != nil {
				return run, err
			}
		}
	}
	return run, nil
}

func readFile(path, name string, f func(string, *Record) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	in := bufio.NewReaderSize(file, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
		var r Record
		if !parse(line, &r) {
			if err := json.Unmarshal(line, &r); err != nil {
				return fmt.Errorf("%s:%d: %w", path, n, err)
			}
		}
		if err := f(name, &r); err != nil {
			return fmt.Errorf("%s:%d: %w", path, n, err)
		}
	}
}

// parse reads the flat form that the Recorder writes; false sends the line to
// encoding/json.
func parse(line []byte, r *Record) bool {
	s := strings.TrimSpace(string(line))
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' || strings.IndexByte(s, '\\') >= 0 {
		return false
	}
	for s = s[1 : len(s)-1]; s != ""; {
		if s[0] == ',' {
			s = s[1:]
		}
		if len(s) < 4 || s[0] != '"' {
			return false
		}
		end := strings.IndexByte(s[1:], '"')
		if end < 0 || len(s) < end+4 || s[end+2] != ':' {
			return false
		}
		key := s[1 : end+1]
		s = s[end+3:]
		var value string
		if s[0] == '"' {
			end = strings.IndexByte(s[1:], '"')
			if end < 0 {
				return false
			}
			value, s = s[1:end+1], s[end+2:]
		} else {
			end = strings.IndexByte(s, ',')
			if end < 0 {
				end = len(s)
			}
			value, s = s[:end], s[end:]
		}
		if !r.set(key, value) {
			return false
		}
	}
	return true
}

func (r *Record) set(key, value string) bool {
	switch key {
	case "k":
		r.Kind = Kind(value)
	case "u":
		r.User = value
	case "d":
		r.Device = value
	case "c":
		r.Conv = value
	case "cmid":
		r.CMID = value
	case "h":
		r.Hash = value
	case "ack":
		r.Ack = value
	case "why":
		r.Reason = value
	case "from":
		r.Sender = value
	case "entry":
		r.Entry = value
	case "name":
		r.Name = value
	case "dup":
		r.Dup = value == "true"
	case "stop":
		r.Stop = value == "true"
	case "t":
		return number(value, &r.T)
	case "n":
		return number(value, &r.N)
	case "mid":
		return number(value, &r.MID)
	case "seq":
		return number(value, &r.Seq)
	case "prev":
		return number(value, &r.Prev)
	case "to":
		return number(value, &r.To)
	default:
		return false
	}
	return true
}

func number(s string, to *int64) bool {
	neg := strings.HasPrefix(s, "-")
	if neg {
		s = s[1:]
	}
	if s == "" || len(s) > 19 {
		return false
	}
	var v int64
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		v = v*10 + int64(s[i]-'0')
	}
	if neg {
		v = -v
	}
	*to = v
	return true
}
