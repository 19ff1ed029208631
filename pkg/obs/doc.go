// Package obs is what a node shows of itself: the logger and the names of its
// fields, metrics, probes and the ops listener.
package obs
