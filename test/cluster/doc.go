// Package cluster tests nodes and the etcd behind them as processes of their
// own: what a node does while etcd is away, and what it does when others vanish.
package cluster
