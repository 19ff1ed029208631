// Package push is the push role: it turns what happened in a conversation into
// deliveries on the gateways that hold its members' sessions.
//
// # Role
//
// State hands over committed entries, receipts and heads with Fanout. Push
// finds who is a member (a cache by membership version, filled from state),
// where their sessions are (the route store), encodes the frame once and gives
// each gateway one Deliver call with everything that waits for it. A large group is
// left to the gateways, which have its members; a busy one is only hinted at, and
// its devices read.
//
// # Invariants
//
//   - One fan-out per conversation is in flight, and one Deliver per (shard,
//     gateway): deliveries of a conversation leave in the order of Fanout. Those to
//     large groups have shards of their own, so that nobody waits behind them; while
//     a group becomes large, or stops being so, one may overtake another, which the
//     clients' cursors find.
//   - A member gets entries above its start only; who was removed by an entry
//     still gets that entry.
//   - Nothing here is the truth: what is dropped is found again by the client's
//     cursor or the gateways' comparison of heads.
//
// # Failure
//
// Full queue: Fanout answers busy and state keeps the item for a while. State or
// the route store away: three tries, then the item is dropped and counted. A
// gateway away: two tries, then its deliveries are dropped and counted; other
// gateways do not wait for it. The node drains: it takes items for another
// second, until the others know, then refuses them, and hands over what it has.
//
// # Metrics
//
// imd_push_items_total, imd_push_deliveries_total, imd_push_dropped_total,
// imd_push_queue_items, imd_push_member_loads_total, imd_push_not_here_total,
// imd_push_pulled_total, imd_push_pull_hints_total.
package push
