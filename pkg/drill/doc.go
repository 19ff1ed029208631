// Package drill breaks a cluster on this machine while devices use it, lets it
// heal, and has the recorded history judged.
//
// # How a drill runs
//
// The nodes of a [Layout] are started as child processes of the same program,
// each with a data folder of its own, and clients reach them through a fault
// proxy. A load test plays devices that come back after every loss and records
// all that they send, are answered and show. Beside it the schedule goes on: a
// list of faults that follows from the seed, the kinds and the duration alone,
// so that a seed can be played again. When the last fault is over, every device
// gets time to catch up; then the logs are read as they are in the store, and
// pkg/verify judges.
//
// A node that ends by itself is started again, as an init system would do it,
// and counts as a failure of the drill unless a fault excuses it.
//
// # The control plane
//
// A layout may have members of etcd as processes of their own, and witnesses:
// processes without clients that take part in the control plane and write down
// what they see. Then there are faults of etcd, which have a schedule beside the
// others', settings change all the time, and the history says what became of each
// process and of etcd, so that what was seen can be judged.
//
// # What is left behind
//
// Nothing: children end with the drill, also if it is killed, mounts are taken
// down, and the folder is removed after a good verdict unless it is to be kept.
// Only a drill that was itself killed may leave its small mounted folder.
package drill
