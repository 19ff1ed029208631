// Package cluster tests the control plane against etcd members that run as
// processes of their own: members die and stall, etcd is away for a while, and
// hundreds of processes follow the registry through a few.
package cluster
