package idgen

import (
	"time"

	"github.com/sony/sonyflake/v2"

	"github.com/imdhq/imd/pkg/im"
)

// An id is, from the top: 41 bits of milliseconds since the epoch (good until
// 2094), 12 of sequence, 10 of worker number.
const (
	sequenceBits = 12
	workerBits   = 10
	maxSequence  = 1<<sequenceBits - 1
)

var epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// epochMs is the epoch in milliseconds since 1970.
var epochMs = epoch.UnixMilli()

// Time is when the id was made, in whole milliseconds, by the clock of the node
// that made it.
func Time(id im.MessageID) time.Time { return time.UnixMilli(msOf(int64(id))).UTC() }

// Worker is the number of the worker that made the id.
func Worker(id im.MessageID) int { return int(id & (1<<workerBits - 1)) }

// msOf is the time of an id in milliseconds since 1970.
func msOf(id int64) int64 { return id>>(sequenceBits+workerBits) + epochMs }

func sequenceOf(id int64) int { return int(id>>workerBits) & maxSequence }

func compose(ms int64, sequence, worker int) int64 {
	return (ms-epochMs)<<(sequenceBits+workerBits) | int64(sequence)<<workerBits | int64(worker)
}

// source makes ids; it is the library.
type source interface{ NextID() (int64, error) }

// newSource fails if the clock is before the epoch.
func newSource(worker int) (source, error) {
	return sonyflake.New(sonyflake.Settings{
		TimeUnit: time.Millisecond, BitsSequence: sequenceBits, BitsMachineID: workerBits,
		StartTime: epoch, MachineID: func() (int, error) { return worker, nil },
	})
}

// ceilMs rounds up to whole milliseconds since 1970.
func ceilMs(t time.Time) int64 {
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++
	}
	return ms
}
