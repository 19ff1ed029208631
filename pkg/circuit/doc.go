// Package circuit says what went wrong with a call to a server that one can do
// without for a while, and whether the next call is worth its time.
package circuit
