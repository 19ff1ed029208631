//go:build drill

package redis

import (
	"github.com/redis/rueidis"

	"github.com/imdhq/imd/pkg/failpoint"
)

// readClock is how scripts read the server's clock, which a drill may have moved:
// seconds and microseconds.
const readClock = `local clock = redis.call('TIME')
local shift = redis.call('GET', '` + failpoint.RedisClock + `')
if shift then clock[1] = string.format('%.0f', tonumber(clock[1]) + tonumber(shift)) end`

// clock reads it outside of scripts.
func clock(b rueidis.Builder) rueidis.Completed {
	return b.Eval().Script(readClock + "\nreturn clock").Numkeys(0).Build()
}
