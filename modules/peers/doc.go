// Package peers joins this process to those that have the other roles: it opens
// the listener on which they call the roles that are here, tells pkg/peer who
// they are, and probes them.
//
// # Role
//
// It is a shared part of every node. It opens nothing while a node has all roles
// and no address is given: then roles call each other directly.
//
// # Invariants
//
//   - Only services between roles are mounted on the listener, and on no other
//     one.
//   - A call is answered only if it is signed with a key of the cluster, or comes
//     with a certificate whose roles may make it; and only by the process that it
//     is for. An answer is believed only if it is signed for its call, or comes
//     from a certificate of the cluster.
//   - Nothing is sent in the clear to, or accepted from, another machine unless
//     the configuration says so.
//
// # Failure
//
// Nodes that fail are left out by pkg/peer. With the control plane away, the
// last view stays in force, and probes tell who is really there.
//
// # Metrics
//
// imd_peer_calls_total, imd_peer_call_seconds, imd_peer_retries_total,
// imd_peer_backups_total, imd_peer_backups_won_total, imd_peer_ejections_total,
// imd_peer_open_connections, imd_peer_in_flight, imd_peer_budget_tokens,
// imd_peer_nodes, imd_peer_ejected_nodes, imd_peer_refused_total.
package peers
