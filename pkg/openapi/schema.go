package openapi

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// builder collects paths and the schemas they need.
type builder struct{ paths, schemas object }

// described adds the comment of d as description, if there is one.
func described(o object, d protoreflect.Descriptor) object {
	if c := comment(d); c != "" {
		o["description"] = c
	}
	return o
}

// comment joins the lines of a comment; blank lines separate paragraphs.
func comment(d protoreflect.Descriptor) string {
	loc := d.ParentFile().SourceLocations().ByDescriptor(d)
	text := loc.LeadingComments
	if strings.TrimSpace(text) == "" {
		text = loc.TrailingComments
	}
	var paragraphs []string
	for _, p := range strings.Split(text, "\n\n") {
		if s := strings.Join(strings.Fields(p), " "); s != "" {
			paragraphs = append(paragraphs, s)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

func (b *builder) method(s protoreflect.ServiceDescriptor, m protoreflect.MethodDescriptor) {
	item := object{"post": b.operation(s, m, "")}
	if o, ok := m.Options().(*descriptorpb.MethodOptions); ok && o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS {
		item["get"] = b.operation(s, m, "Get")
	}
	b.paths["/"+string(s.FullName())+"/"+string(m.Name())] = item
}

func (b *builder) operation(s protoreflect.ServiceDescriptor, m protoreflect.MethodDescriptor, suffix string) object {
	op := described(object{
		"operationId": string(s.Name()) + "_" + string(m.Name()) + suffix,
		"tags":        []any{string(s.Name())},
		"responses": object{
			"200":     object{"description": "Done.", "content": jsonContent(b.ref(m.Output()))},
			"default": object{"description": "Refused or failed.", "content": jsonContent(object{"$ref": "#/components/schemas/Error"})},
		},
	}, m)
	if suffix == "" {
		op["requestBody"] = object{"required": true, "content": jsonContent(b.ref(m.Input()))}
		return op
	}
	op["parameters"] = []any{
		object{"name": "encoding", "in": "query", "required": true, "schema": object{"type": "string", "enum": []any{"json"}}},
		object{"name": "message", "in": "query", "required": true, "content": jsonContent(b.ref(m.Input()))},
	}
	return op
}

func jsonContent(schema object) object { return object{"application/json": object{"schema": schema}} }

// ref names the schema of a message and makes sure that it is there.
func (b *builder) ref(m protoreflect.MessageDescriptor) object {
	name := string(m.FullName())
	if _, ok := b.schemas[name]; !ok {
		b.schemas[name] = nil // a recursive message ends here
		b.schemas[name] = b.message(m)
	}
	return object{"$ref": "#/components/schemas/" + name}
}

func (b *builder) message(m protoreflect.MessageDescriptor) object {
	properties := object{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		properties[f.JSONName()] = b.field(f)
	}
	o := described(object{"type": "object", "properties": properties}, m)
	var choices []any
	for i := range m.Oneofs().Len() {
		if one := m.Oneofs().Get(i); !one.IsSynthetic() {
			choices = append(choices, atMostOne(one))
		}
	}
	if choices != nil {
		o["allOf"] = choices
	}
	return o
}

// atMostOne says that no two fields of a oneof go together.
func atMostOne(one protoreflect.OneofDescriptor) object {
	var pairs []any
	for i := range one.Fields().Len() {
		for j := range i {
			pairs = append(pairs, object{"required": []any{one.Fields().Get(j).JSONName(), one.Fields().Get(i).JSONName()}})
		}
	}
	return object{"not": object{"anyOf": pairs}}
}

func (b *builder) field(f protoreflect.FieldDescriptor) object {
	switch {
	case f.IsMap():
		return described(object{"type": "object", "additionalProperties": b.value(f.MapValue())}, f)
	case f.IsList():
		return described(object{"type": "array", "items": b.value(f)}, f)
	}
	return described(b.value(f), f)
}

// value is one value of a field as ProtoJSON writes it.
func (b *builder) value(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return b.ref(f.Message())
	case protoreflect.EnumKind:
		return b.enum(f.Enum())
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return object{"type": "string", "format": "int64", "pattern": "^-?[0-9]+$"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "format": "uint64", "pattern": "^[0-9]+$"}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "format": "uint32", "minimum": 0}
	}
	return object{"type": "integer", "format": "int32"}
}

// enum names the schema of an enum.
func (b *builder) enum(e protoreflect.EnumDescriptor) object {
	name := string(e.FullName())
	if _, ok := b.schemas[name]; !ok {
		var names []any
		for i := range e.Values().Len() {
			names = append(names, string(e.Values().Get(i).Name()))
		}
		b.schemas[name] = described(object{"type": "string", "enum": names}, e)
	}
	return object{"$ref": "#/components/schemas/" + name}
}
