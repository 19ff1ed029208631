// Package conformance checks a running server against docs/protocol.md from
// outside, with a stock WebSocket client, statement by statement and in both
// encodings.
package conformance
