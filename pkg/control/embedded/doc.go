// Package embedded runs an etcd server inside this process, for a node that
// was given no endpoints. It is a real etcd with its data on disk and fsync on;
// it has one member, no peers and, unless asked, no listener. StartMember runs a
// member of an ordinary cluster instead, for a process that does nothing else.
// This is the only package that imports the etcd server.
//
// etcd reports damage and a full disk by ending the process. Here such a report
// becomes an error of Start or a value of Failed, so that the node can say one
// sentence and stop in order.
package embedded
