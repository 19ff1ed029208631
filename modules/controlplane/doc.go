// Package controlplane registers the node, follows the others, leases worker
// numbers, keeps the settings current, and runs elections and locks, with the
// driver that the command hands in.
//
// # Role
//
// None: it is part of every node and starts first. Other modules read the
// cluster through control.Handle, which is an atomic load; none of them ever
// waits for etcd while it handles a message.
//
// # Invariants
//
// The view never goes back in revision unless etcd did. A record is written
// only over an absent one, one of this boot, or one whose process does not
// answer. The lease is revoked last of all when the node stops. A leader acts
// only after its token is in the message store and in its key, and stops before
// its lease can end.
//
// # Failure
//
// Away at start: the node starts with the nodes that the last process knew and is
// degraded; if none are known, it waits unready, naming the endpoints, and becomes
// ready when etcd answers. A name or certificate that etcd refuses ends the start.
// Away later: the node stays ready and serves from the last view, marked stale;
// the readiness check says degraded; the lease is tried again for as long as it
// takes; the settings stay as they were, and a node that starts meanwhile begins
// with those that it remembers in its data folder. A change of the settings that
// cannot be right is refused as a whole; the old values stay and the node stays
// ready. An embedded server that ends by itself (a full disk) stops the node.
//
// # Metrics
//
//	imd_etcd_lease_lost_total            leases that ended without our doing
//	imd_etcd_record_repairs_total        own records found missing or wrong
//	imd_etcd_watch_resyncs_total{cause}  full reads of nodes, leaders or settings after the first
//	imd_etcd_watches                     watches that etcd serves this node; 0 while others hand on what they see
//	imd_relay_waiting                    calls of other nodes that wait here for changes
//	imd_etcd_revision_lag                revisions that etcd is known to be ahead of the view
//	imd_etcd_view_age_seconds            since the last sign of life of the watch
//	imd_etcd_renewals_total{result}      attempts to renew the lease
//	imd_etcd_away                        1 while etcd cannot be reached
//	imd_etcd_call_seconds{method,class}  calls to an etcd cluster
//	imd_etcd_endpoint_good{endpoint}     1 while calls prefer it
//	imd_etcd_member_*{endpoint}          revision, database bytes, in use and quota, alarms
//	imd_etcd_registered                  1 while the record is written under a lease that holds
//	imd_discovery_drift_total            records that were wrong; 0 in a healthy cluster
//	imd_discovery_suspects_total         nodes whose record vanished without a word
//	imd_discovery_held_total             of these, kept in use because most of a role vanished at once
//	imd_discovery_evicted_total          of these, gone
//	imd_discovery_nodes{state}           nodes in the view
//	imd_discovery_standing{standing}     the same by why they are in it
//	imd_election_leading{election}       1 while this node leads
//	imd_election_token{election}         the token of its present term; 0 = none
//	imd_election_terms_total{election}   terms of this node
//	imd_election_ends_total{election,reason}  terms of this node that ended: resigned, demoted, deposed, fenced, returned
//	imd_election_forced_total{election}  dead leaders whose lease this node revoked
//	imd_election_fenced_total{election}  claims of the fence that the message store refused
//	imd_locks{state}                     locks that this node holds, or waits for
//	imd_locks_lost_total                 locks of this node that ended without its doing
//	imd_settings_revision                revision of the newest change of the settings in force
//	imd_settings_refused_revision        newest revision that was refused and still stands; 0 = none
//	imd_settings_applied_total           revisions of the settings that were taken
//	imd_settings_refused_total           revisions of the settings that were not
//	imd_settings_gaps_total              missed changes that a version gave away
//	imd_settings_drift_total             checks that found a difference; 0 in a healthy cluster
//	imd_settings_age_seconds             since the last sign of life of the watch
//	imd_settings_subscriber_late_total   calls of subscribers that took more than a second
//	imd_node_info{node,version,roles,zone}  1
package controlplane
