package protocol

import (
	"bytes"
	"strconv"
	"sync"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

var unmarshalJSON = protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: MaxNesting + 1}

func checkText(data []byte) error {
	if !utf8.Valid(data) {
		return &FrameError{Fault: BadText, Detail: "text that is not UTF-8"}
	}
	return nil
}

// cutJSON takes the next object off a text envelope; ok is false at its end.
func cutJSON(data []byte) (raw, rest []byte, ok bool, err error) {
	for len(data) > 0 {
		line := data
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			line, data = data[:i], data[i+1:]
		} else {
			data = nil
		}
		if line = bytes.Trim(line, " \t\r"); len(line) > 0 {
			return line, data, true, nil
		}
	}
	return nil, nil, false, nil
}

// decodeJSON checks what the JSON mapping of protobuf leaves open, then
// decodes by that mapping.
func decodeJSON(raw []byte, into proto.Message) error {
	s := scanner{in: raw}
	if err := s.frame(into.ProtoReflect().Descriptor()); err != nil {
		return err
	}
	if err := unmarshalJSON.Unmarshal(raw, into); err != nil {
		return badFrame("JSON: %v", err)
	}
	return nil
}

// scanner walks one JSON object once and refuses what decoders commonly let
// pass: a key twice, lone surrogates, deep nesting and numbers that a double
// cannot hold. What it accepts is still parsed in full afterwards, so it only
// needs to find its way, not to be a validator.
type scanner struct {
	in    []byte
	pos   int
	depth int
}

// frame scans one object with the fields of md and nothing behind it.
func (s *scanner) frame(md protoreflect.MessageDescriptor) error {
	if s.peek() != '{' {
		return badFrame("JSON: a frame is one object a line")
	}
	if err := s.object(shapeOf(md)); err != nil {
		return err
	}
	if s.peek() != 0 || s.pos < len(s.in) {
		return badFrame("JSON: something follows the object")
	}
	return nil
}

// peek skips white space and returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.in) {
		switch c := s.in[s.pos]; c {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// value scans any value; sh describes the objects in it, nil if nobody knows.
func (s *scanner) value(sh *shape) error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(sh)
	case c == '[':
		return s.array(sh)
	case c == '"':
		_, err := s.str()
		return err
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c >= 'a' && c <= 'z':
		for s.pos < len(s.in) && s.in[s.pos] >= 'a' && s.in[s.pos] <= 'z' {
			s.pos++
		}
		return nil
	}
	return badFrame("JSON: a value is missing at byte %d", s.pos)
}

func (s *scanner) enter() error {
	s.pos++
	if s.depth++; s.depth > MaxNesting {
		return badFrame("JSON: nested deeper than %d", MaxNesting)
	}
	return nil
}

func (s *scanner) object(sh *shape) error {
	if err := s.enter(); err != nil {
		return err
	}
	var seen keySet
	for first := true; ; first = false {
		done, err := s.separator('}', first)
		if done || err != nil {
			return err
		}
		if s.peek() != '"' {
			return badFrame("JSON: a key is missing at byte %d", s.pos)
		}
		key, err := s.str()
		if err != nil {
			return err
		}
		canonical, child := sh.field(key)
		if !seen.add(canonical) {
			return badFrame("JSON: the key %s comes twice", strconv.Quote(string(key)))
		}
		if s.peek() != ':' {
			return badFrame("JSON: ':' is missing at byte %d", s.pos)
		}
		s.pos++
		if err := s.value(child); err != nil {
			return err
		}
	}
}

func (s *scanner) array(sh *shape) error {
	if err := s.enter(); err != nil {
		return err
	}
	for first := true; ; first = false {
		done, err := s.separator(']', first)
		if done || err != nil {
			return err
		}
		if err := s.value(sh); err != nil {
			return err
		}
	}
}

// separator takes a comma, none before the first element, or the closing byte.
func (s *scanner) separator(end byte, first bool) (done bool, err error) {
	switch c := s.peek(); {
	case c == end:
		s.pos++
		s.depth--
		return true, nil
	case first:
		return false, nil
	case c == ',':
		s.pos++
		return false, nil
	}
	return false, badFrame("JSON: ',' or '%c' is missing at byte %d", end, s.pos)
}

// number scans a number and refuses one that a double cannot hold exactly.
func (s *scanner) number() error {
	from := s.pos
	for s.pos < len(s.in) {
		c := s.in[s.pos]
		if (c < '0' || c > '9') && c != '-' && c != '+' && c != '.' && c != 'e' && c != 'E' {
			break
		}
		s.pos++
	}
	text := s.in[from:s.pos]
	if len(text) <= 15 && !bytes.ContainsAny(text, "eE") {
		return nil // too short to be too large
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || f > MaxBareInteger || f < -MaxBareInteger {
		return badFrame("JSON: the bare number %.40s is above 2^53-1 or malformed", text)
	}
	return nil
}

// str scans a string and returns what it stands for. The result aliases the
// input if nothing in it is escaped.
func (s *scanner) str() ([]byte, error) {
	s.pos++
	from := s.pos
	var out []byte
	escaped := false
	for s.pos < len(s.in) {
		switch c := s.in[s.pos]; {
		case c == '"':
			raw := s.in[from:s.pos]
			s.pos++
			if escaped {
				return append(out, raw...), nil
			}
			return raw, nil
		case c == '\\':
			out = append(out, s.in[from:s.pos]...)
			escaped = true
			r, err := s.escape()
			if err != nil {
				return nil, err
			}
			out = utf8.AppendRune(out, r)
			from = s.pos
		case c < ' ':
			return nil, badFrame("JSON: a control character in a string")
		default:
			s.pos++
		}
	}
	return nil, badFrame("JSON: a string does not end")
}

var simpleEscapes = map[byte]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// escape scans one escape sequence, or the two of a surrogate pair.
func (s *scanner) escape() (rune, error) {
	if s.pos+1 >= len(s.in) {
		return 0, badFrame("JSON: a string does not end")
	}
	c := s.in[s.pos+1]
	if c != 'u' {
		r, ok := simpleEscapes[c]
		if !ok {
			return 0, badFrame("JSON: an unknown escape")
		}
		s.pos += 2
		return r, nil
	}
	hi, ok := s.hex4(s.pos)
	if !ok {
		return 0, badFrame("JSON: a malformed escape")
	}
	s.pos += 6
	if !utf16.IsSurrogate(hi) {
		return hi, nil
	}
	lo, ok := s.hex4(s.pos)
	if r := utf16.DecodeRune(hi, lo); ok && r != utf8.RuneError {
		s.pos += 6
		return r, nil
	}
	return 0, badFrame("JSON: a lone surrogate")
}

// hex4 reads the four digits of a \u escape at a position.
func (s *scanner) hex4(at int) (rune, bool) {
	if at+6 > len(s.in) || s.in[at] != '\\' || s.in[at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(s.in[at+2:at+6]), 16, 16)
	return rune(n), err == nil
}

// keySet holds the keys of one object: a short list first, a map when it grows.
type keySet struct {
	few  []string
	many map[string]struct{}
}

func (k *keySet) add(key string) bool {
	if k.many != nil {
		if _, dup := k.many[key]; dup {
			return false
		}
		k.many[key] = struct{}{}
		return true
	}
	for _, have := range k.few {
		if have == key {
			return false
		}
	}
	if k.few = append(k.few, key); len(k.few) == 16 {
		k.many = make(map[string]struct{}, 64)
		for _, have := range k.few {
			k.many[have] = struct{}{}
		}
	}
	return true
}

// shape is what the scanner must know of a message: the one name behind both
// spellings of a field, and the shape of the messages in it.
type shape struct {
	fields map[string]shapeField
}

type shapeField struct {
	canonical string
	child     *shape
}

// field returns the name under which a key counts, and the shape below it. A
// nil shape, of a map or of something unknown, takes each key as it is.
func (sh *shape) field(key []byte) (string, *shape) {
	if sh != nil {
		if f, ok := sh.fields[string(key)]; ok {
			return f.canonical, f.child
		}
	}
	return string(key), nil
}

var shapes sync.Map // protoreflect.FullName → *shape

func shapeOf(md protoreflect.MessageDescriptor) *shape {
	if sh, ok := shapes.Load(md.FullName()); ok {
		return sh.(*shape)
	}
	sh, _ := shapes.LoadOrStore(md.FullName(), buildShape(md))
	return sh.(*shape)
}

// buildShape works because no message of the protocol contains itself.
func buildShape(md protoreflect.MessageDescriptor) *shape {
	sh := &shape{fields: make(map[string]shapeField)}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		f := shapeField{canonical: fd.JSONName()}
		if fd.Message() != nil && !fd.IsMap() {
			f.child = buildShape(fd.Message())
		}
		sh.fields[fd.JSONName()] = f
		sh.fields[string(fd.Name())] = f
	}
	return sh
}
