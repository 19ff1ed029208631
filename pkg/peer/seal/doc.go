// Package seal proves to nodes that a call comes from their own cluster: by a
// shared key with which each request is signed, or by certificates that name
// the roles of a node.
//
// # Shared key
//
// A request carries the time, a nonce and an HMAC-SHA256 over the process that it
// is for, method, time, nonce and body. A request more than 30 s old, or seen
// before, is refused. The answer carries an HMAC over status, body and the
// request's own, so that nobody without the key can answer either. Two
// keys are good at a time, the first one signs, so that a key is changed without
// a stop: add the new one as second everywhere, then make it the first
// everywhere, then drop the old one.
//
// Where many messages go over one connection, both sides bring a nonce, derive a
// key for each direction from these and the shared key, and prove each message
// and its number with 16 bytes.
//
// # Certificates
//
// TLS 1.3, both sides. A certificate names the roles of its node as URIs
// "imd://CLUSTER/role/ROLE"; a method is open to the roles that call it. The
// files are read anew when they change.
package seal
