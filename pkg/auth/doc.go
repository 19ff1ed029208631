// Package auth knows who calls: it verifies and mints the tokens of users and
// makes and compares the API keys of the customer's backend. It decides from
// what it is given alone; whether a login was revoked or a key is stored is
// asked elsewhere.
//
// A token is a JWT. Each key is pinned to one algorithm, so that a public key
// can never be taken for a shared secret, and an unsigned token never passes.
package auth
