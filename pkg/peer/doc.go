// Package peer gives modules typed clients for the other roles. A client has
// the generated Connect interface and picks its place per call: a handler in
// this process is called directly, under the rules that a network would impose
// (a deadline, no caller values, no panics, wire errors).
package peer
