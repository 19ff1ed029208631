package segment

// Event is what happens to a Machine: Want, Taken, Refused, Held, Gone, Reserved,
// Unreserved, Appended, Overtaken or Fenced.
type Event interface{ event() }

// Events.
type (
	// Want asks for numbers for a call: each conversation once, with the rows
	// that may be stored in it.
	Want struct{ Needs []Need }
	// Taken says that this process owns a shard from now on, with the fence.
	Taken struct {
		Shard int
		Fence int64
	}
	// Refused says that a takeover failed because the owner was named by a view
	// that is not older than View, the one that the takeover went by.
	Refused struct {
		Shard int
		View  Version
	}
	// Held says that a takeover did not come through, because calls of the owner
	// are under way.
	Held struct{ Shard int }
	// Gone says that the takeover that Effects.Wait asked for was given up. It is
	// asked for again when numbers are wanted.
	Gone struct{ Shard int }
	// Reserved says that the numbers above After, up to Upto, belong to the owner
	// of the conversation's shard with the fence.
	Reserved struct {
		Conv        string
		Shard       int
		Fence       int64
		After, Upto int64
	}
	// Unreserved says that no numbers could be reserved for a conversation for now.
	Unreserved struct {
		Conv  string
		Shard int
	}
	// Appended says that numbers of a conversation up to Last are used.
	Appended struct {
		Conv  string
		Shard int
		Last  int64
	}
	// Overtaken says that Head of a conversation was not below the number that
	// was given for it.
	Overtaken struct {
		Conv  string
		Shard int
		Head  int64
	}
	// Fenced says that the store refused the fence of a shard: it has another
	// owner, and everything that this process has sent to the store in the name
	// of that fence is committed or never will be.
	Fenced struct {
		Shard int
		Fence int64
	}
)

func (Want) event()       {}
func (Taken) event()      {}
func (Refused) event()    {}
func (Held) event()       {}
func (Gone) event()       {}
func (Reserved) event()   {}
func (Unreserved) event() {}
func (Appended) event()   {}
func (Overtaken) event()  {}
func (Fenced) event()     {}

// Need is a wish for numbers of one conversation.
type Need struct {
	Conv  string
	Shard int
	Rows  int64 // at least 1
}

// Version says how new a view of the ring is. Revisions of different clusters
// cannot be compared.
type Version struct {
	Cluster  uint64 // the etcd cluster that Revision is of
	Revision int64
}

// View is a process's view of the ring.
type View struct {
	Version
	// Mine reports whether the ring gives the shard to this process's node; nil
	// gives it none.
	Mine func(shard int) bool
}

// Effects are what follows from a Want; other events have none but Wait.
type Effects struct {
	// Take are the shards to take over, without waiting for their owner's calls.
	// Each is answered with Taken, Refused or Held; then the Want is repeated.
	Take []int
	// Wait are the shards to take over in the background, waiting for their
	// owner's calls. Each is answered with Taken, Refused or Gone.
	Wait []int
	// Reserve are the numbers to reserve; each is answered with Reserved or
	// Unreserved, or with Fenced; then the Want is repeated.
	Reserve []Reservation
	// Refill is Reserve for the background: nobody waits for it.
	Refill []Reservation
	// Grants are the conversations that may be written to now.
	Grants []Grant
	// Elsewhere are the conversations that another process owns.
	Elsewhere []string
	// Busy are the conversations to try again later.
	Busy []string
}

// Reservation asks for Count more numbers of a conversation.
type Reservation struct {
	Conv  string
	Shard int
	Fence int64
	Count int64
}

// Grant is the right to write to a conversation under a fence: its first new row
// gets the number First, the others follow one by one.
type Grant struct {
	Conv  string
	Shard int
	Fence int64
	First int64
}
