// Package segment decides who numbers what under the allocator "segment": which
// shards a process owns, and from which segments, blocks of numbers that it has
// reserved, it numbers their conversations. It touches nothing: a Machine is told
// what happened and says what to do, so that a store drives it in production and
// a simulator with several of them, by seed.
//
// # Why no number comes twice or too late
//
// The store keeps a fence for each shard. Whoever writes in a shard proves the
// fence and holds it to the commit; whoever takes the shard over raises it, which
// waits for all who hold it. A segment is reserved after the takeover's commit, so
// that nobody else can reserve or write any more, and it lies above everything
// that was reserved or written before. So all that a new owner writes comes after
// all that a former owner wrote, in time and in number.
//
// Numbers are used up by commits alone: a call whose outcome is unknown runs
// again with the numbers it had. The store compares each number with the head of
// its conversation, so that a call that comes when nobody waits for it any more
// stores nothing.
//
// # Why there is one owner
//
// A shard belongs to the node that the ring names, and a process takes one over
// only if its own view of the ring names it and is newer than the view that named
// the owner. An old view takes nothing back. That keeps two processes from taking
// a shard from each other in turns; the order of messages does not depend on it.
package segment
