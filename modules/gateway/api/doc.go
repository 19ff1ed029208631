// Package api is the HTTP API on the public listener: the Connect services of
// imd.v1, for users with their tokens and for the customer's backend with API
// keys, usable with a plain curl line.
//
// # Invariants
//
// Who acts comes from the verified bearer credential. A user's token acts for
// that user and nobody else; an API key acts as the system or as the user its
// request names in as_user, within the key's scopes. This is settled in one
// place, before any method runs (see policy and call.resolve), and a method
// without a policy keeps the server from starting.
//
// Whether a login was revoked is asked of the directory for each call; an API
// key is remembered for 5 s, so that a revoked one ends within 10 s everywhere.
//
// # Failure
//
// Without the state role every call answers unavailable. A known key goes on
// for 10 s at most while the directory is away.
//
// # Metrics
//
// Those of package rpc.
package api
