// Package rate holds the arithmetic of rate limits: token buckets, alone or by
// key, and strikes that end in a pause. It starts no goroutines and reads no
// clock: the caller says what time it is, and the maps stay bounded because
// entries that do not matter any more are forgotten as others come.
package rate
