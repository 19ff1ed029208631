package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/imdhq/imd/sdk/go/protocol"
)

type object = map[string]any

// Package is the protobuf package whose services are described.
const Package = "imd.v1"

// FromImage describes the services of Package in an encoded FileDescriptorSet,
// which needs source information for the texts.
func FromImage(image []byte) ([]byte, error) {
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(image, &set); err != nil {
		return nil, fmt.Errorf("openapi: the image is no file descriptor set: %w", err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	return FromFiles(files)
}

// FromFiles describes the services of Package. Linked descriptors carry no
// comments; the document is then the same without texts.
func FromFiles(files *protoregistry.Files) ([]byte, error) {
	b := builder{paths: object{}, schemas: object{}}
	var services []protoreflect.ServiceDescriptor
	files.RangeFilesByPackage(Package, func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			services = append(services, f.Services().Get(i))
		}
		return true
	})
	if len(services) == 0 {
		return nil, fmt.Errorf("openapi: there is no service in %s", Package)
	}
	sort.Slice(services, func(i, j int) bool { return services[i].FullName() < services[j].FullName() })
	var tags []any
	for _, s := range services {
		tags = append(tags, described(object{"name": string(s.Name())}, s))
		for i := range s.Methods().Len() {
			b.method(s, s.Methods().Get(i))
		}
	}
	b.schemas["Error"] = errorSchema()
	b.schemas["imd.client.v1.Error"] = wireError()
	return encode(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "imd", "version": "v1",
			"description": "The HTTP API of the imd instant-messaging server. Every call is a POST with a JSON body; calls without side effects also answer a GET. " +
				"64-bit integers are decimal strings; fields with their default value are left out of answers; unknown fields in a request are refused.",
		},
		"servers":    []any{object{"url": "/"}},
		"security":   []any{object{"bearer": []any{}}},
		"tags":       tags,
		"paths":      b.paths,
		"components": object{"schemas": b.schemas, "securitySchemes": object{"bearer": securityScheme()}},
	})
}

// encode writes keys in order, so that the same schema gives the same bytes.
func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	return out.Bytes(), nil
}

func securityScheme() object {
	return object{"type": "http", "scheme": "bearer", "description": "A user's token (JWT), or an API key of the backend (imd_...)."}
}

// errorSchema is a Connect error.
func errorSchema() object {
	return object{
		"type": "object", "description": "A Connect error. The element of details with the type imd.client.v1.Error has the stable reason.",
		"properties": object{
			"code":    object{"type": "string", "description": "A Connect code word."},
			"message": object{"type": "string", "description": "For people; may change."},
			"details": object{"type": "array", "items": object{"type": "object", "properties": object{
				"type":  object{"type": "string"},
				"value": object{"type": "string", "description": "The encoded message in base64 without padding."},
				"debug": object{"$ref": "#/components/schemas/imd.client.v1.Error"},
			}}},
		},
	}
}

// wireError is the detail, with the table of reasons as its text.
func wireError() object {
	var names []any
	var text strings.Builder
	text.WriteString("A stable reason; new ones may come, then retryable decides.\n")
	for _, r := range protocol.Reasons() {
		if r.Code == "" {
			continue // only closes connections
		}
		names = append(names, r.Reason)
		fmt.Fprintf(&text, "\n- `%s` (%s): %s", r.Reason, r.Code, r.Meaning)
	}
	return object{"type": "object", "properties": object{
		"code":         object{"type": "string"},
		"reason":       object{"type": "string", "examples": names, "description": text.String()},
		"retryable":    object{"type": "boolean", "description": "The same request may be sent again."},
		"retryAfterMs": object{"type": "integer", "format": "uint32", "description": "Usual pause before that, in milliseconds."},
		"message":      object{"type": "string"},
	}}
}
