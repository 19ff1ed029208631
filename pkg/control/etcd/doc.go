// Package etcd is the control plane on etcd: it registers this node, follows
// the others and leases worker numbers. It works the same on a client of the
// embedded server and on one with network endpoints.
//
// Keys, all below /imd/<cluster>/:
//
//	nodes/<node id>   the record of a node (control.Node as JSON), under its lease of 10 s
//	workers/<number>  who holds a worker number, under a lease of 60 s
//	leader/<election>  its leader (control.Leader as JSON), under its lease of 3 s
//	config/<section>  the settings of a section (settings.Document as JSON)
//	config_history/<section>/<number>  its former documents, the last 50
//	config_status/<node id>  what settings a node has in force, under a lease of 60 s
//
// # Registration
//
// One loop per process makes one call at a time; registration.step decides
// which, and knows nothing of etcd or of clocks:
//
//	nothing announced -> idle
//	no lease          -> grant
//	record not as announced -> put, if the key is absent or of this boot
//	key of another boot     -> probe; dead: put over it; alive: refuse, try again a lease later
//	lease due         -> renew: 1 s an attempt, the next after 0.5 s, for as long as etcd is away
//	lease not found   -> lost: grant a new one after a short random pause
//	check due         -> read the own key; missing or wrong: put again
//
// A lease counts as held until its TTL after the sending of the last renewal
// that succeeded, less a margin; the server counts from later.
//
// # Following
//
// Nodes, leaders and settings are followed alike, each by one watch: read all,
// then watch from the next revision. Whatever goes wrong with the watch
// (compaction, no leader, 15 s of silence) leads back to reading all. A copy never
// goes back in revision unless etcd itself did. While etcd is away the last one
// stays and is marked stale. One question every 5 s makes etcd give all watches of
// a process a sign of life.
//
// With an upstream a process has no watch: it asks other processes instead, which
// answer from their copies, and follows etcd for a minute when none has answered
// for 10 to 15 s. Of nodes and leaders they tell the newest change of each key, of
// settings every change, so that each is judged like everywhere else. A candidate
// of an election follows the leaders in etcd itself.
//
// # Settings
//
// The changes of one revision are handed on together; settings.State decides
// what to make of them. Documents are written with a comparison of the revision
// that they replace, together with their history; after an unknown outcome the
// history tells.
//
// Every call has a deadline of 2 s or less.
package etcd
