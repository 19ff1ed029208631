// Package cmd is the command line: it parses, prints and turns failures into
// exit statuses; the work is done below. It composes the program: only here
// are drivers named, and only here a node is put together from its modules.
package cmd
