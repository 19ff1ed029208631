// Package faultproxy is a TCP proxy that can be told to misbehave: it stands
// between a client and a server and delays, starves, swallows or cuts what
// passes, so that tests and drills need no privileges to break a network.
package faultproxy
