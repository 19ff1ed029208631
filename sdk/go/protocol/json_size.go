package protocol

import (
	"encoding/base64"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// sizeJSON returns the exact length of appendJSON's output.
func sizeJSON(m protoreflect.Message) int {
	n, fields := 2, 0
	for _, f := range jsonPlan(m.Descriptor()) {
		if !m.Has(f.fd) {
			continue
		}
		fields++
		n += len(f.key) + fieldSize(f.fd, m.Get(f.fd))
	}
	return n + max(fields-1, 0)
}

func fieldSize(fd protoreflect.FieldDescriptor, v protoreflect.Value) int {
	switch {
	case fd.IsMap():
		n := 2 + max(v.Map().Len()-1, 0)
		v.Map().Range(func(k protoreflect.MapKey, e protoreflect.Value) bool {
			n += stringSize(k.String()) + 1 + valueSize(fd.MapValue(), e)
			return true
		})
		return n
	case fd.IsList():
		n := 2 + max(v.List().Len()-1, 0)
		for i := range v.List().Len() {
			n += valueSize(fd, v.List().Get(i))
		}
		return n
	}
	return valueSize(fd, v)
}

func valueSize(fd protoreflect.FieldDescriptor, v protoreflect.Value) int {
	switch fd.Kind() {
	case protoreflect.MessageKind:
		return sizeJSON(v.Message())
	case protoreflect.StringKind:
		return stringSize(v.String())
	case protoreflect.BytesKind:
		return base64.StdEncoding.EncodedLen(len(v.Bytes())) + 2
	case protoreflect.BoolKind:
		return len(strconv.FormatBool(v.Bool()))
	case protoreflect.EnumKind:
		if ed := fd.Enum().Values().ByNumber(v.Enum()); ed != nil {
			return len(ed.Name()) + 2
		}
		return intSize(int64(v.Enum()))
	case protoreflect.Int32Kind:
		return intSize(v.Int())
	case protoreflect.Int64Kind:
		return intSize(v.Int()) + 2
	case protoreflect.Uint32Kind:
		return uintSize(v.Uint())
	}
	return uintSize(v.Uint()) + 2
}

func intSize(n int64) int {
	if n < 0 {
		return uintSize(uint64(-n)) + 1
	}
	return uintSize(uint64(n))
}

func uintSize(n uint64) int {
	size := 1
	for ; n > 9; n /= 10 {
		size++
	}
	return size
}

// Bounds of the fixed parts of an entry in JSON: every name, number and enum
// at its longest.
const (
	entryOverhead        = 480
	contentOverhead      = 80
	memberChangeOverhead = 140
	convChangeOverhead   = 60
)

// JSONSizeBound returns an upper bound of an entry's size in JSON, in bytes.
// It is cheap: strings are counted with their escapes, everything else is a
// constant, and nothing is reflected upon. It is meant for cutting pages, which
// must fit whichever encoding their reader uses; an entry's binary form is
// never larger.
func JSONSizeBound(e *clientv1.Entry) int {
	if e == nil {
		return 0
	}
	n := entryOverhead + stringSize(e.ClientMessageId) + stringSize(e.Sender)
	if c := e.Content; c != nil {
		n += contentOverhead + stringSize(c.Type) + stringSize(c.GetText()) + base64.StdEncoding.EncodedLen(len(c.GetData()))
		for k, v := range c.Attributes {
			n += stringSize(k) + stringSize(v) + 2
		}
	}
	if mc := e.MemberChange; mc != nil {
		n += memberChangeOverhead
		for _, id := range mc.UserIds {
			n += stringSize(id) + 1
		}
	}
	if cc := e.ConversationChange; cc != nil {
		n += convChangeOverhead + stringSize(cc.GetName())
	}
	return n
}
