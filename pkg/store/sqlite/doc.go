// Package sqlite is the message store of a node that holds all roles in one
// process: one SQLite file in WAL mode, synchronous=FULL, so that what Append
// has answered survives a power cut.
//
// Writing. One connection writes, one transaction at a time (writer). It keeps
// the heads, members and blocks of recently used conversations in memory, so
// that a send costs about one INSERT. What is in memory equals what the next
// transaction would read, because every change goes through the writer; a
// transaction that fails drops what it touched.
//
// Reading. A few read-only connections answer from a snapshot and never wait
// for the writer.
//
// Log. Another connection copies pages from the log into the database while the
// writer goes on (checkpointer). The writer stands still only for the last of
// them, after which the log begins anew: a few milliseconds once in 6,000 pages.
//
// Versions. Each commit has the next number of one counter, and every row that
// a user's list of conversations is made of carries the number of the commit
// that changed it last. With one writer the numbers become visible in their
// order, so "changed since" is exact, without any overlap.
//
// Identity. The counter and the data_epoch are also kept in a small file
// beside the database, written behind each commit without a flush. A database
// that is older than this file, or has lost it, was restored from a copy: it
// gets a new data_epoch. The same file is the lock against a second process.
//
// Rules. What a member sees and what a change does to a group is decided in
// pkg/store/rules, as for every driver.
package sqlite
