// Package protocol is the frame codec of the imd client protocol: how frames
// are packed into envelopes, which input is refused and with what close code,
// the limits both sides keep, the table of reasons and close codes, and the
// ids that can be computed without asking anybody.
//
// It does no I/O, starts no goroutines and keeps no state, so the server, the
// Go client and tools share it. Everything in it is safe for concurrent use.
//
// An envelope is one WebSocket message and holds one or more frames. In the
// binary encoding each frame is preceded by its length as a varint; in JSON
// each is one line. Frames are therefore encoded once and concatenated for as
// many receivers as there are.
package protocol
