// Package scheduler is the role for work that belongs to no request and that
// only one node may do.
//
// # Role
//
// The nodes with this role elect one of them, and it does all the jobs. jobs.go
// has the table of them, and the frame that every job runs in. A new leader goes
// on where the rows in the message store say that the former one stood.
//
// Besides its jobs the leader follows every gateway and tells each what others see
// of the users that it asked for (presence.go; what is decided there is pkg/presence).
//
// # Invariants
//
//   - A revocation is removed only a day after the last token of its login has
//     expired, so that a clock that is ahead for a while brings no token back.
//   - Every effect proves the leader's token in its own transaction. A leader that
//     was paused and replaced has none, whatever it believes of itself.
//   - What is shown of a user proves the leader's token to each gateway, which
//     refuses a leader that was followed.
//   - At most one round of a job runs in a process, and no job waits for another.
//
// # Failure
//
// Store away: the next round does it; nothing grows by more than an hour's worth.
// Etcd away: the leader stops by itself within 2.5 s and nobody follows until etcd
// is back; the work waits. The leader's process dies: another leads within a
// second, or within 4 s if its machine died too. The leader drains: another leads
// at once.
//
// # Metrics
//
// imd_scheduler_runs_total{job,result} (ok, failed, fenced, ended),
// imd_scheduler_run_seconds{job}, imd_scheduler_expired_total, imd_scheduler_routes_swept_total,
// imd_tally_silent_nodes, imd_retention_entries_total, imd_scheduler_proclaimed_total,
// imd_scheduler_proclaim_failures_total; imd_schedule_messages_total{result},
// imd_schedule_late_seconds, imd_schedule_open, imd_schedule_overdue_seconds;
// imd_presence_users, imd_presence_sessions, imd_presence_watched, imd_presence_gateways{state},
// imd_presence_changes_total{kind}, imd_presence_shown_total, imd_presence_superseded_total,
// imd_presence_saved_total{result}, imd_presence_events_total{result};
// imd_outbox_marks_total, imd_outbox_trimmed_total; imd_offline_handed_over_total,
// imd_offline_pushes_total{result}, imd_offline_asked_total{result}; imd_webhook_* of
// pkg/outbox; imd_election_*{election="scheduler"} of the control plane.
package scheduler
