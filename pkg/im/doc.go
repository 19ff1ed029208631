// Package im is the vocabulary of the server: typed ids, the entries of a
// conversation's log, and the one error type. It opens nothing and starts
// nothing; every other package may import it.
package im
