// Package datadir keeps the data folder of a node: who may use it (a lock),
// what is secret in it (the keys), what the node is called, and where it
// listens (endpoints.json, by which programs on the same machine find it).
//
//	lock             held for as long as a node runs; holds its pid
//	node.id          the node's id, made once
//	keys/token.key   signs client tokens: one "id secret" a line, newest first
//	keys/admin.key   the bearer token of the ops services
//	endpoints.json   bound addresses, boot id and pid; gone after a clean stop
//
// The folder belongs to one user: it has mode 0700 and its keys 0600, and both
// are refused otherwise.
package datadir
