package protocol

import (
	"encoding/base64"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
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
