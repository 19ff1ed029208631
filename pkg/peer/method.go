package peer

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/imdhq/imd/pkg/balance"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Method is how one method between roles is called, as its proto file says.
type Method struct {
	Name      string // "state.Submit": role or service, and method
	Procedure string // "/imd.internal.v1.StateService/Submit"
	Repeat    v1.Repeat
	Pick      v1.Pick
	Class     balance.Class
	Reads     bool // it has no side effects
}

// Methods lists the methods between roles by name.
func Methods() []Method {
	out := make([]Method, 0, len(methods))
	for _, m := range methods {
		out = append(out, *m)
	}
	slices.SortFunc(out, func(a, b Method) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// MethodOf finds a method by its procedure.
func MethodOf(procedure string) (Method, bool) {
	for _, m := range methods {
		if m.Procedure == procedure {
			return *m, true
		}
	}
	return Method{}, false
}

// Picker is the name of the picker that the method has by default; "" for
// methods whose caller names the node.
func (m Method) Picker() string {
	switch m.Pick {
	case v1.Pick_PICK_CONVERSATION, v1.Pick_PICK_USER:
		return balance.NameConsistentHash
	case v1.Pick_PICK_LEAST_REQUEST:
		return balance.NameLeastRequest
	}
	return ""
}

// methods is the table, by name.
var methods = readMethods(
	v1.File_imd_internal_v1_internal_proto, v1.File_imd_internal_v1_peer_proto, v1.File_imd_internal_v1_relay_proto)

func readMethods(files ...protoreflect.FileDescriptor) map[string]*Method {
	out := map[string]*Method{}
	for _, f := range files {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := readMethod(s, s.Methods().Get(j))
				out[m.Name] = m
			}
		}
	}
	return out
}

func readMethod(s protoreflect.ServiceDescriptor, d protoreflect.MethodDescriptor) *Method {
	m := &Method{
		Name:      strings.ToLower(strings.TrimSuffix(string(s.Name()), "Service")) + "." + string(d.Name()),
		Procedure: "/" + string(s.FullName()) + "/" + string(d.Name()),
	}
	o, ok := d.Options().(*descriptorpb.MethodOptions)
	if !ok {
		return m
	}
	m.Reads = o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	if c, ok := proto.GetExtension(o, v1.E_Call).(*v1.Call); ok {
		m.Repeat, m.Pick = c.GetRepeat(), c.GetPick()
		m.Class = balance.Class(max(c.GetCriticality()-1, 0))
	}
	return m
}

// method finds a row that must be there: names are constants of this package.
func method(name string) *Method {
	m := methods[name]
	if m == nil {
		panic("peer: no method " + name)
	}
	return m
}
