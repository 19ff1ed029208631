// Package control holds the contracts of the control plane: the record of a
// node, the registry that lists them, and the view that everything else reads.
// Reading the cluster is an atomic load; etcd is never on the path of a message.
package control
