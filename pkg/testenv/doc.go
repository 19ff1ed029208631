// Package testenv starts what end-to-end tests talk to: real nodes as child
// processes, and clients that speak the protocol from outside. Tests only.
package testenv
