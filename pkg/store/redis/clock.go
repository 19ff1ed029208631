//go:build !drill

package redis

import "github.com/redis/rueidis"

// readClock is how scripts read the server's clock: seconds and microseconds.
const readClock = `local clock = redis.call('TIME')`

// clock reads it outside of scripts.
func clock(b rueidis.Builder) rueidis.Completed { return b.Time().Build() }
