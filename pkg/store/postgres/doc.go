// Package postgres is the message store for production: one Postgres that any
// number of nodes share.
//
// Writing. A batch of sends is one call of a server-side function, outside of
// any transaction block: the function locks the conversations in the order of
// their ids, reads what is stored, judges the rest, numbers, inserts and moves
// the heads. A client that stops in the middle holds nothing: the server ends
// the call alone. Seqs are dense, given out under the conversation's row lock
// (allocator "transaction"), so that the store needs no owner of a conversation.
// Under the allocator "segment" the process that owns a conversation's shard gives
// them out from memory, as a segment.Machine says, and proves its fence in each
// transaction that writes an entry; see docs/features/allocators.md.
//
// Outcomes. An answer of the server says whether a change was made. A connection
// that is lost after the call was sent, or a server that goes down, leaves that
// open: store.ErrUnknownOutcome. A conversation that another transaction holds
// makes its rows retryable and lets the others of the batch pass.
//
// Connections. Appends have a pool of their own, so that reads cannot starve
// them. A caller whose time is over goes; its call keeps the connection until
// the server answers or its own limit passes. So a stalled server has at most as
// many calls, connections and goroutines as the pools are large.
//
// Reading. Each query sees the newest commit. A sync page takes two statements.
//
// Versions. A row that a user's list of conversations is made of carries the
// number of the transaction that changed it last. A sync token holds the oldest
// transaction that was under way when the walk began: everything changed since
// has that number or a higher one, whenever it became visible. So "changed since"
// misses nothing and repeats only what was committing just then.
//
// Identity. The data_epoch is kept with the identity of the cluster it was made
// in: system, timeline and table. A restored copy, a promoted standby or another
// server have another identity and get a new data_epoch; each new connection
// looks.
//
// Rules. What a member sees and what a change does to a group is decided in
// pkg/store/rules, as for every driver.
package postgres
