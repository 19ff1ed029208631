// Package gateway is the gateway role: it holds the client sessions of a node.
//
// # Role
//
// It accepts WebSockets, authenticates them, claims their routes, forwards
// sends as runs to state, answers reads from state, and delivers what push
// hands it. front.go and accept.go are the way in, session.go what happens then,
// queue.go and writer.go the way out.
//
// # Invariants
//
//   - A send is answered ACK_OK only with what state said was stored; anything
//     unclear is ACK_RETRY, and every send is answered within two seconds.
//   - Of one connection and conversation one run is in flight, and after an
//     ACK_RETRY nothing that was sent later overtakes it (pkg/run).
//   - Who acts is decided by the verified token, never by a frame's contents.
//   - A session is registered for deliveries before its route is claimed, so
//     what a delivery does not find here has ended (place.go).
//   - Routes are refreshed by this node alone, and put back when the store has
//     lost them (keeper.go). A claim that comes late displaces nobody newer. With
//     each refresh the login is looked up too, in case nobody could tell this node
//     that it was ended.
//   - Those who log in are looked up and claim their places in groups, four at
//     once, and the others wait for their turn (admit.go); nobody who joins waits for
//     the gateway of a session that it displaced.
//   - Under session.strict a session is welcomed only when its rank is in the
//     message store, and each of its sends carries it (prove.go).
//   - What sessions begin and end is told to the leader of the schedulers in order
//     (presence.go), and what it says others see of users is told to sessions in
//     order too. A session watches those who share a conversation with its user.
//   - Delivers of a conversation rise in seq on a connection; what does not fit
//     becomes a head hint, because the log is the truth.
//   - A connection that is quiet costs no goroutine: it is parked (reader.go) at
//     the end of a message with nothing buffered, and its next byte or its end
//     starts one. All timers of all sessions are one wheel.
//   - The members of a large group are found here: their list is read once and
//     follows the changes that come with deliveries (groups.go). What goes to many
//     is handed out by shards (engine.go), which give way to everything else; what
//     goes to a few never waits for them.
//   - Whoever has frames for a connection may write them directly, once and
//     without waiting, if nobody else does; what the socket does not take waits
//     for a goroutine (writer.go). So no client delays another.
//   - The session's lock is taken before its queue's and before no other
//     session's; no lock is held over a call to another role.
//
// # Failure
//
// State away: sends get ACK_RETRY, requests an error, newcomers busy. Route
// store away: newcomers are admitted and their routes claimed later, but busy
// under reject_new. It has forgotten: all routes are back within 7 seconds. A client that does not read is put into pull mode, then
// closed. A client that floods is told to wait, then closed. Descriptors at an
// end: newcomers are refused, and those who are here stay. Memory at an end:
// newcomers are refused, then those closed for whom most waits (guard.go).
//
// # Metrics
//
// imd_gateway_connections, imd_gateway_connections_parked,
// imd_gateway_memory_returned_total, imd_gateway_memory_used_ratio,
// imd_gateway_memory_shed_total, imd_gateway_handshakes_total,
// imd_gateway_frames_total, imd_gateway_sessions_closed_total,
// imd_gateway_pull_mode_total, imd_gateway_redeliveries_total,
// imd_gateway_rate_limited_total, imd_gateway_marks_dropped_total,
// imd_gateway_heads_total, imd_gateway_stale_leader_calls_total, imd_gateway_submit_sends,
// imd_gateway_routes_refreshed_total{result}, imd_gateway_routes_away,
// imd_gateway_route_losses_total, imd_gateway_sessions_unclaimed,
// imd_gateway_outranked_total, imd_gateway_kicks_lost_total,
// imd_gateway_presence_events_total{result}, imd_gateway_presence_watchers,
// imd_gateway_presence_watched, imd_gateway_presence_silence_seconds, imd_gateway_typing_total{result},
// imd_gateway_groups, imd_gateway_group_members, imd_gateway_group_loads_total{result},
// imd_gateway_group_dropped_total, imd_gateway_shard_late_seconds{shard},
// imd_gateway_shard_busy_seconds_total{shard},
// imd_message_send_seconds, imd_message_deliver_seconds.
package gateway
