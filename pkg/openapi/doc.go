// Package openapi turns protobuf services into an OpenAPI 3.1 document that
// describes them as Connect serves them with JSON. Texts are the comments of
// the schema. It is used when the document is generated and when a test checks
// that the committed one still tells the truth; nothing of it runs in a node.
package openapi
