package sim

// Variant is a rule that is broken on purpose.
type Variant int

// The variants.
const (
	// Sound breaks nothing.
	Sound Variant = iota
	// AckBeforeCommit answers sends when they reach the state node.
	AckBeforeCommit
	// PermissionBeforeDedup looks at the sender's membership before at what is
	// stored already.
	PermissionBeforeDedup
	// ReadBeforeSubscribe reads the answer to a resume before the session can be
	// delivered to.
	ReadBeforeSubscribe
	// RetryOutOfPlace runs a part of a batch again behind the part that follows.
	RetryOutOfPlace
	// RunAfterRetry lets later sends go on after one was refused.
	RunAfterRetry
	// NoDedup stores what is sent again.
	NoDedup
	// NoAntiEntropy compares no heads.
	NoAntiEntropy
	// NoDigest compares no digests on devices.
	NoDigest
)

// Variants are all but Sound.
var Variants = []Variant{
	AckBeforeCommit, PermissionBeforeDedup, ReadBeforeSubscribe, RetryOutOfPlace, RunAfterRetry, NoDedup, NoAntiEntropy, NoDigest,
}

// String names a variant.
func (v Variant) String() string {
	return [...]string{
		"sound", "ack before commit", "permission before dedup", "read before subscribe", "batch retried out of place",
		"run continued after a retry", "no dedup", "no comparison of heads", "no comparison of digests",
	}[v]
}
