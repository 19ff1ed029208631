// Package docs holds the documents that the binary serves itself.
package docs

import (
	_ "embed"
	"slices"
)

//go:embed openapi.json
var openAPI []byte

// OpenAPI is the OpenAPI 3.1 document of the public HTTP API, in JSON. The
// caller owns the copy.
func OpenAPI() []byte { return slices.Clone(openAPI) }
