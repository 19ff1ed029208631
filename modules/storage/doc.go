// Package storage opens the stores that the configuration names and lends them
// to the other modules of the node.
//
// # Role
//
// It is no role of its own: modules that keep or read state need it, so that
// it starts before them and closes after them. Which drivers there are is the
// command's decision.
//
// # Invariants
//
//   - After Start both stores have answered once; until Close they are the ones
//     that store.Handle gives. So is the dedup cache, which need not have answered.
//   - No node starts whose clock is more than 5 minutes behind the newest stored
//     entry: new messages would seem older than those before them, and ids could
//     come twice.
//
// # Failure
//
// A store that cannot be opened fails the start with one sentence; a wrong
// configuration, a newer schema and a wrong clock are *module.ConfigError. A
// store that is away later makes the node not ready, by the check "storage",
// which proves that writing works; it is ready again when the store is.
//
// # Metrics
//
// imd_storage_ping_seconds, imd_storage_ping_failures_total.
package storage
