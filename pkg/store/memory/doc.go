// Package memory is the route store of a node that holds all roles in one
// process: a table in memory, sharded by user. It is a production driver. Its
// routes end with the process, as do the connections they stand for.
package memory
