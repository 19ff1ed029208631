// Package bench puts load on a server from outside: many devices in one
// process, driven by one epoll loop with its own WebSocket framing and its own
// codec for the frames that come by the thousand, so that the client's share of
// the processor stays small beside the server's.
//
// # How it measures
//
// Under a rate each operation has a time at which it should begin, fixed before
// the run. Latency counts from that time, however late the server made the
// device; what could not even begin is in the distribution with the time it had
// waited. Without a rate a number of operations is kept unanswered, and latency
// counts from when each began.
//
// # Failure
//
// A run ends by itself. If the server goes away, the run ends with an error
// and with what was measured so far, unless the devices are told to come back;
// then they do so by the rules of the protocol and send again, in order, what
// was not answered.
//
// Everything in a run happens on the goroutine that calls Run, save the making
// of tokens.
package bench
