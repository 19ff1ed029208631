// Package backup writes the data of a node that keeps its messages in the
// embedded store into one file, while the node runs, and puts it back.
//
// The file is a tar archive that can be looked at and unpacked without imd:
//
//	manifest.json   what it holds; first, so that it can be read without the rest
//	imd.db          the database as it was at one moment
//	token.key       the keys that sign client tokens, unless they were left out
//	SHA256SUMS      check sums of all before it; last, so that a file that was cut is noticed
//
// It holds every message and, with the keys, the power to be any user: it is
// made for its owner only (0600). Not in it, because a node makes them anew or
// because two nodes must not have the same: the node id, the admin key,
// endpoints.json, locks, and the folder of the embedded etcd with the settings.
package backup
