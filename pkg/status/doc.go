// Package status makes the pages of the ops listener that tell what a process
// knows and does: JSON for programs, tables for people. A page needs no script
// and shows nothing that was not escaped. The listener is private; what is about
// single users is told to who has the admin key only.
package status
