// Package machine measures time on a machine that does other things besides, and
// that may stand still: for tests, which promise what a machine of its own does.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Slowest bounds how many times slower than usual a machine is taken to be.
const Slowest = 10

// Slowdown is how many times slower than usual everything is taken to be where a
// crowd wants to run: 1 to Slowest.
func Slowdown(crowd float64) float64 { return min(max(crowd, 1), Slowest) }

// Crowd is how many threads want to run for each processor; 1 where that is not
// known.
func Crowd() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 1
	}
	return crowdOf(string(text), runtime.NumCPU())
}

// crowdOf reads the fourth field of /proc/loadavg, "running/all".
func crowdOf(loadavg string, processors int) float64 {
	fields := strings.Fields(loadavg)
	if len(fields) < 4 {
		return 1
	}
	var running int
	if _, err := fmt.Sscanf(fields[3], "%d/", &running); err != nil {
		return 1
	}
	return float64(running) / float64(processors)
}
