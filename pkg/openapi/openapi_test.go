package openapi

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/imdhq/imd/docs"
	_ "github.com/imdhq/imd/sdk/go/gen/imdv1" // the linked descriptors
)

func committed(t *testing.T) object {
	t.Helper()
	var doc object
	if err := json.Unmarshal(docs.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// The committed document has the shape of the linked schema: `make openapi`
// writes it anew.
func TestTheDocumentIsCurrent(t *testing.T) {
	bare, err := FromFiles(protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	var want object
	if err := json.Unmarshal(bare, &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(silent(want), silent(committed(t))); d != "" {
		t.Errorf("docs/openapi.json is not what the schema says (run make openapi):\n%s", d)
	}
}

// silent takes the texts out. A property that is called description stays.
func silent(v any) any {
	switch v := v.(type) {
	case object:
		out := object{}
		for k, e := range v {
			if _, text := e.(string); k != "description" || !text {
				out[k] = silent(e)
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = silent(v[i])
		}
		return out
	}
	return v
}

func TestEveryMethodFieldAndEnumIsThere(t *testing.T) {
	doc := committed(t)
	paths := doc["paths"].(object)
	schemas := doc["components"].(object)["schemas"].(object)
	var seen int
	protoregistry.GlobalFiles.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				seen++
				path, ok := paths["/"+string(s.FullName())+"/"+string(m.Name())].(object)
				if !ok {
					t.Errorf("%s is missing", m.FullName())
					continue
				}
				if text, _ := path["post"].(object)["description"].(string); text == "" {
					t.Errorf("%s has no text", m.FullName())
				}
				checkMessage(t, schemas, m.Input(), map[protoreflect.FullName]bool{})
				checkMessage(t, schemas, m.Output(), map[protoreflect.FullName]bool{})
			}
		}
		return true
	})
	if seen == 0 {
		t.Fatal("no method was looked at")
	}
}

func checkMessage(t *testing.T, schemas object, m protoreflect.MessageDescriptor, done map[protoreflect.FullName]bool) {
	if done[m.FullName()] {
		return
	}
	done[m.FullName()] = true
	schema, ok := schemas[string(m.FullName())].(object)
	if !ok {
		t.Errorf("%s is missing", m.FullName())
		return
	}
	properties, _ := schema["properties"].(object)
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		if _, ok := properties[f.JSONName()]; !ok {
			t.Errorf("%s is missing", f.FullName())
		}
		if f.Enum() != nil {
			checkEnum(t, schemas, f.Enum())
		}
		if f.Message() != nil && !f.IsMap() {
			checkMessage(t, schemas, f.Message(), done)
		}
	}
}

func checkEnum(t *testing.T, schemas object, e protoreflect.EnumDescriptor) {
	schema, _ := schemas[string(e.FullName())].(object)
	values, _ := schema["enum"].([]any)
	for i := range e.Values().Len() {
		name, found := string(e.Values().Get(i).Name()), false
		for _, v := range values {
			found = found || v == name
		}
		if !found {
			t.Errorf("%s is missing", name)
		}
	}
}

// Every reference leads somewhere.
func TestReferencesResolve(t *testing.T) {
	doc := committed(t)
	schemas := doc["components"].(object)["schemas"].(object)
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case object:
			if ref, ok := v["$ref"].(string); ok {
				if _, there := schemas[strings.TrimPrefix(ref, "#/components/schemas/")]; !there {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, e := range v {
				walk(e)
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(doc)
}

func TestFromImageRefuses(t *testing.T) {
	for name, image := range map[string][]byte{"rubbish": []byte("rubbish"), "nothing": nil} {
		if _, err := FromImage(image); err == nil {
			t.Errorf("%s passed", name)
		}
	}
}
