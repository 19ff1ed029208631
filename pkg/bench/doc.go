// Package bench puts load on a server from outside: many devices in one
// process, driven by one epoll loop with its own WebSocket framing, so that the
// client's share of the processor stays small beside the server's.
package bench
