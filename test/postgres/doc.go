// Package postgres holds the tests of what operators do with a Postgres: the
// commands that look at it and renew its schema, and the start of nodes on it.
// It has no production code.
package postgres
