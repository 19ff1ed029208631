// Package webhook tells a receiver over HTTP what has happened: one signed POST
// for each message, at least once.
//
// The form is that of the convention "Standard Webhooks": the headers webhook-id,
// webhook-timestamp and webhook-signature, where a signature is "v1," and the
// base64 of HMAC-SHA256 over "id.timestamp.body". With two keys there are two
// signatures, so that a key can be changed without a gap. The id is the same at
// every try: it is by what a receiver knows a repeat.
//
// A Sender follows no redirect, reads little of an answer, gives each request a
// deadline, and can refuse to connect to addresses of private networks.
package webhook
