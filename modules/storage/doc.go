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
//   - After Start the message store has answered once; until Close it is the one
//     that store.Handle gives. So are the route store and the dedup cache, which
//     need not have answered.
//   - No node starts whose clock is more than 5 minutes behind the newest stored
//     entry: new messages would seem older than those before them, and ids could
//     come twice.
//   - A database that several servers could reach has one (tenancy.go): the nodes
//     of one control plane. Two clusters with the same controlplane.cluster are not
//     told apart.
//
// # Failure
//
// A store that cannot be opened fails the start with one sentence; a wrong
// configuration, a newer schema, a wrong clock and another server in the same
// database are *module.ConfigError. A
// store that is away later makes the node not ready, by the check "storage",
// which proves that writing works; it is ready again when the store is.
//
// # Metrics
//
// imd_storage_ping_seconds, imd_storage_ping_failures_total; with routes in etcd
// imd_routes_table_lag_seconds and imd_routes_table_sessions.
package storage
