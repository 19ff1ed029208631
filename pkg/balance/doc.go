// Package balance decides which node gets a call, whether a call is made again
// or twice, which nodes are left out for a while, and what is refused when
// there is too much: everything about calls between nodes that can be decided
// without making one.
//
// # Parts
//
//   - Picker: round robin, smooth weighted round robin, random, least request,
//     and consistent hash (a ring that skips who is out).
//   - Local: the targets of the same zone first.
//   - Budget: repeats cost what successes earn.
//   - Hedge: when a backup request is due, and whether one more is allowed.
//   - Ejector: nodes that fail are left out, never more than half of them, and
//     come back by a probe.
//   - Gate: ceilings of calls in flight by criticality.
//
// The package is pure: time and chance come in as arguments, so that it can be
// simulated by seed.
package balance
