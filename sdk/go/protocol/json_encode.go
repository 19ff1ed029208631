package protocol

import (
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// The JSON mapping of protobuf, written out here because the library's encoder
// adds white space at random on purpose. This one is deterministic and compact:
// fields in the order of their numbers, map keys sorted, no white space.

var errNotUTF8 = errors.New("encode frame: a string is not UTF-8")

// jsonField is one field of a message with what is constant about it.
type jsonField struct {
	fd  protoreflect.FieldDescriptor
	key string // "name":
}

var jsonPlans sync.Map // protoreflect.FullName → []jsonField

func jsonPlan(md protoreflect.MessageDescriptor) []jsonField {
	if p, ok := jsonPlans.Load(md.FullName()); ok {
		return p.([]jsonField)
	}
	plan := make([]jsonField, md.Fields().Len())
	for i := range plan {
		fd := md.Fields().Get(i)
		plan[i] = jsonField{fd, `"` + fd.JSONName() + `":`}
	}
	slices.SortFunc(plan, func(a, b jsonField) int { return int(a.fd.Number()) - int(b.fd.Number()) })
	p, _ := jsonPlans.LoadOrStore(md.FullName(), plan)
	return p.([]jsonField)
}

func appendJSON(dst []byte, m protoreflect.Message) ([]byte, error) {
	dst = append(dst, '{')
	first := true
	var err error
	for _, f := range jsonPlan(m.Descriptor()) {
		if !m.Has(f.fd) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, f.key...)
		v := m.Get(f.fd)
		switch {
		case f.fd.IsMap():
			dst, err = appendMap(dst, f.fd, v.Map())
		case f.fd.IsList():
			dst, err = appendList(dst, f.fd, v.List())
		default:
			dst, err = appendValue(dst, f.fd, v)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func appendList(dst []byte, fd protoreflect.FieldDescriptor, l protoreflect.List) ([]byte, error) {
	dst = append(dst, '[')
	var err error
	for i := range l.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendValue(dst, fd, l.Get(i)); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

func appendMap(dst []byte, fd protoreflect.FieldDescriptor, m protoreflect.Map) ([]byte, error) {
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
	dst = append(dst, '{')
	var err error
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendString(dst, k.String()); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = appendValue(dst, fd.MapValue(), m.Get(k)); err != nil {
			return nil, err
		}
	}
	return append(dst, '}'), nil
}

func appendValue(dst []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return appendJSON(dst, v.Message())
	case protoreflect.StringKind:
		return appendString(dst, v.String())
	case protoreflect.BytesKind:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, v.Bytes())
		return append(dst, '"'), nil
	case protoreflect.BoolKind:
		return strconv.AppendBool(dst, v.Bool()), nil
	case protoreflect.EnumKind:
		if ed := fd.Enum().Values().ByNumber(v.Enum()); ed != nil {
			dst = append(append(dst, '"'), ed.Name()...)
			return append(dst, '"'), nil
		}
		return strconv.AppendInt(dst, int64(v.Enum()), 10), nil
	case protoreflect.Int32Kind:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case protoreflect.Uint32Kind:
		return strconv.AppendUint(dst, v.Uint(), 10), nil
	case protoreflect.Int64Kind:
		dst = strconv.AppendInt(append(dst, '"'), v.Int(), 10)
		return append(dst, '"'), nil
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		dst = strconv.AppendUint(append(dst, '"'), v.Uint(), 10)
		return append(dst, '"'), nil
	}
	return nil, errors.New("encode frame: no JSON form for " + fd.Kind().String())
}

const hexDigits = "0123456789abcdef"

// appendString writes a JSON string with the fewest escapes: quotes,
// backslashes and control characters.
func appendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, errNotUTF8
	}
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		if e := shortEscape(c); e != 0 {
			dst = append(dst, '\\', e)
		} else {
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"'), nil
}

// shortEscape returns the letter of a two-character escape, 0 if c needs the
// long form.
func shortEscape(c byte) byte {
	switch c {
	case '"', '\\':
		return c
	case '\b':
		return 'b'
	case '\f':
		return 'f'
	case '\n':
		return 'n'
	case '\r':
		return 'r'
	case '\t':
		return 't'
	}
	return 0
}

// stringSize returns the exact length of appendString's output.
func stringSize(s string) int {
	n := len(s) + 2
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			if shortEscape(c) != 0 {
				n++
			} else {
				n += 5
			}
		}
	}
	return n
}
