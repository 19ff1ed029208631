// Package scheduler is the role for work that belongs to no request.
//
// # Role
//
// Every hour it removes revocations that no token can need any more. The work
// changes nothing that anybody can see and may run on several nodes at once.
//
// # Invariants
//
//   - A revocation is removed only after the last token of its login has expired.
//
// # Failure
//
// Store away: the next round does it; nothing grows by more than an hour's worth.
//
// # Metrics
//
// imd_scheduler_runs_total{job,result}, imd_scheduler_expired_total.
package scheduler
