package cmd

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/redis"
)

const (
	// minRedis is the oldest major version that speaks the protocol we use.
	minRedis = 6
	// slowRedis is a round trip at which look-ups begin to be given up.
	slowRedis = 2 * time.Millisecond
)

// examineRedis judges the Redis of a configuration; nothing if it names none.
func examineRedis(ctx context.Context, cfg *loaded) ([]etcd.Finding, error) {
	c := storage.DefaultRedisConfig()
	if err := cfg.values.Decode("redis", &c); err != nil {
		return nil, err
	}
	if c.URL == "" {
		return nil, nil
	}
	at, err := redisOf(c)
	if err != nil {
		return nil, err
	}
	facts, err := redis.Examine(ctx, at)
	return judgeRedis(facts, err), nil
}

// judgeRedis is the pure part: what the facts, or the failure to get them, mean.
func judgeRedis(f redis.Facts, err error) (found []etcd.Finding) {
	add := func(check string, v etcd.Verdict, fix, format string, args ...any) {
		found = append(found, etcd.Finding{Check: "redis " + check, Verdict: v, Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	switch dedup.ClassOf(err) {
	case "":
	case dedup.Refused:
		add("reach", etcd.Failing, "correct the user and the password in redis.url", "it refuses the login")
		return found
	default:
		add("reach", etcd.Failing, "start it, or correct redis.url; until then repeated sends are answered by the message store, and routes kept there are missing", "it does not answer: %v", err)
		return found
	}
	if f.RoundTrip > slowRedis {
		add("latency", etcd.Doubt, "put it nearer, or see what keeps it busy; look-ups are given up after 5 ms", "a round trip takes %v", f.RoundTrip.Round(10*time.Microsecond))
	} else {
		add("latency", etcd.Good, "", "a round trip takes %v", f.RoundTrip.Round(10*time.Microsecond))
	}
	major, _ := strconv.Atoi(strings.SplitN(f.Version, ".", 2)[0])
	if major < minRedis {
		add("version", etcd.Failing, fmt.Sprintf("install version %d or newer", minRedis), "version %q is too old", f.Version)
	} else {
		add("version", etcd.Good, "", "version %s", f.Version)
	}
	if f.Role == "slave" {
		add("role", etcd.Failing, "name the primary, or the Sentinels with &master_set=NAME", "it is a replica and takes no writes")
	} else {
		add("role", etcd.Good, "", "takes writes")
	}
	if f.Policy != "noeviction" {
		add("eviction", etcd.Doubt, "set maxmemory-policy noeviction", "it throws keys away when its memory is full (%s)", f.Policy)
	} else {
		add("eviction", etcd.Good, "", "keeps its keys (noeviction)")
	}
	return found
}
