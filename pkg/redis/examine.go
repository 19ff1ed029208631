package redis

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Facts is what a server is like, for those who judge an installation.
type Facts struct {
	Version   string
	Role      string        // master or slave, as the server calls it
	Policy    string        // what it does when its memory is full
	RoundTrip time.Duration // median of a few
}

// examinePings is how many round trips are measured.
const examinePings = 9

// Examine connects to the server that cfg names and asks it. ctx should have a
// deadline. Errors are *circuit.Error, or about cfg.
func Examine(ctx context.Context, cfg Config) (f Facts, err error) {
	opt, err := options(cfg)
	if err != nil {
		return f, err
	}
	c, err := rueidis.NewClient(opt)
	if err != nil {
		return f, Classified(err)
	}
	defer c.Close()
	var trips []time.Duration
	for range examinePings {
		began := time.Now()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil {
			return f, Classified(err)
		}
		trips = append(trips, time.Since(began))
	}
	slices.Sort(trips)
	f.RoundTrip = trips[len(trips)/2]
	info, err := c.Do(ctx, c.B().Info().Build()).ToString()
	if err != nil {
		return f, Classified(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			f.Version = value
		case "role":
			f.Role = value
		case "maxmemory_policy":
			f.Policy = value
		}
	}
	return f, nil
}
