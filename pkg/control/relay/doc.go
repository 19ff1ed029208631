// Package relay hands the registry on from node to node, so that a cluster of
// many processes costs etcd few watches: a Server answers from a control.Feed,
// and a Client is a Feed that asks the nodes which follow etcd themselves.
package relay
