package peer

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/imdhq/imd/pkg/balance"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Every method between roles says how it is called, and what it says fits
// together. A new method without that fails here.
func TestEveryMethodIsMarked(t *testing.T) {
	n := 0
	protoregistry.GlobalFiles.RangeFilesByPackage("imd.internal.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for j := range f.Services().Get(i).Methods().Len() {
				n++
				marked(t, f.Services().Get(i).Methods().Get(j))
			}
		}
		return true
	})
	if n != len(methods) || n == 0 {
		t.Errorf("the table has %d of %d methods", len(methods), n)
	}
}

func marked(t *testing.T, d protoreflect.MethodDescriptor) {
	o := d.Options().(*descriptorpb.MethodOptions)
	c, _ := proto.GetExtension(o, v1.E_Call).(*v1.Call)
	level, repeat := o.GetIdempotencyLevel(), c.GetRepeat()
	switch {
	case level == descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN:
		t.Errorf("%s has no idempotency_level", d.FullName())
	case c == nil || repeat == 0 || c.GetPick() == 0 || c.GetCriticality() == 0:
		t.Errorf("%s does not say how it is called", d.FullName())
	case repeat == v1.Repeat_REPEAT_BACKUP && level != descriptorpb.MethodOptions_NO_SIDE_EFFECTS:
		t.Errorf("%s may be made twice at once but has side effects", d.FullName())
	case (repeat == v1.Repeat_REPEAT_ANYWHERE || repeat == v1.Repeat_REPEAT_BACKUP) && c.GetPick() == v1.Pick_PICK_NODE:
		t.Errorf("%s is for one node and cannot be repeated at others", d.FullName())
	}
	if _, ok := MethodOf("/" + string(d.Parent().FullName()) + "/" + string(d.Name())); !ok {
		t.Errorf("%s is not in the table", d.FullName())
	}
}

func TestMethods(t *testing.T) {
	all := Methods()
	for i, m := range all {
		if i > 0 && strings.Compare(all[i-1].Name, m.Name) >= 0 {
			t.Errorf("%s is out of order", m.Name)
		}
	}
	submit, deliver := method("state.Submit"), method("gateway.Deliver")
	if submit.Picker() != balance.NameConsistentHash || submit.Class != balance.Append || submit.Reads || submit.Repeat != v1.Repeat_REPEAT_ANYWHERE {
		t.Errorf("Submit: %+v", submit)
	}
	if deliver.Picker() != "" || deliver.Class != balance.Fanout {
		t.Errorf("Deliver: %+v", deliver)
	}
	if method("directory.User").Picker() != balance.NameLeastRequest {
		t.Error("User is not balanced by load")
	}
	if _, ok := MethodOf("/imd.v1.MessageService/Send"); ok {
		t.Error("a public method is in the table")
	}
}
