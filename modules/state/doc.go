// Package state is the state role: it orders, stores and reads conversations,
// and it is the directory of users, logins and API keys.
//
// # Role
//
// Submit puts sends into lanes by the hash of their conversation. A lane has
// one call to the message store out at a time; what arrives meanwhile is the
// next batch, so that batches grow with the load and no timer is needed. After
// the commit the sender is answered, and the entry goes to push behind the
// answer. A send that is marked as a resend is looked up in the dedup cache
// first, in one call for all of a Submit; the cache is told of commits behind
// the answers. Changes of conversations pass the same lanes. Sync, History,
// Heads and Members read; Mark moves delivered positions in memory and read
// positions in the store.
//
// # Invariants
//
//   - ACK_OK only after the commit; ACK_FAIL only if the send is not stored and
//     never will be; everything else is ACK_RETRY.
//   - Each send of a call is answered exactly once, within 1.2 s.
//   - A send is never stored before an earlier one of its run that was refused
//     as retryable.
//   - Of a session that carries its rank nothing is stored once a newer one has
//     been noted; it is told ACK_RETRY, as nothing is decided about the message.
//   - A conversation that somebody else holds in the store leaves its batch; the
//     others of the lane go on, and sends to it are told when to come again.
//   - A batch of unknown outcome runs again, unchanged and before anything else
//     of its lane, until its outcome is known.
//   - Entries of a conversation go to push in the order of their commits.
//   - Every queue has a bound: what does not fit is answered with a time to
//     wait, or (fan-out, positions) dropped and counted.
//
// # Failure
//
// Dedup cache away, slow, emptied or full of what is not ours: the store answers
// resends. Store away: sends get ACK_RETRY unavailable; a batch whose outcome is unknown
// blocks its lane until the store answers again. Push away: items are tried for
// a second and dropped; clients find the entries by their cursors. The process
// dies: delivered positions of the last 5 s are lost, nothing else.
//
// # Metrics
//
// imd_ack_total, imd_message_duplicates_total, imd_lane_batch_rows,
// imd_lane_wait_seconds, imd_lane_queue_rows, imd_state_append_seconds,
// imd_state_unknown_outcomes_total, imd_state_fanout_items_total,
// imd_state_fanout_dropped_total, imd_state_positions_total,
// imd_dedup_lookups_total, imd_dedup_errors_total, imd_dedup_notes_total,
// imd_dedup_answer_seconds, imd_dedup_open.
package state
