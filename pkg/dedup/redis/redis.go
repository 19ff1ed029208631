// Package redis is the dedup cache in Redis, which all state nodes share: a
// repeat that reaches another node than the first copy is answered from it too.
package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/redis"
)

const (
	// tryTime bounds a Try, which senders wait for.
	tryTime = 5 * time.Millisecond
	// maxCalls is how many calls may be on their way.
	maxCalls = 32
	// maxValue is more than the longest value of ours.
	maxValue = 256
)

// Config says where the server is, and how long it remembers.
type Config struct {
	redis.Config
	dedup.Options
}

// Cache is a dedup.Cache in Redis.
type Cache struct {
	cfg  Config
	link *redis.Link
}

// Open makes a cache that connects by itself, now or when the server is there.
// The error is about cfg only.
func Open(cfg Config, log *zap.Logger) (*Cache, error) {
	link, err := redis.Open(cfg.Config, redis.Use{
		Name: "the dedup cache", Without: "repeats go to the message store", Calls: maxCalls, Pipeline: 4 * dedup.MaxKeys,
	}, log)
	if err != nil {
		return nil, err
	}
	cfg.Options = cfg.Options.WithDefaults()
	return &Cache{cfg: cfg, link: link}, nil
}

// Open is dedup.Cache's.
func (c *Cache) Open() bool { return c.link.Away() }

// Close is dedup.Cache's. It leaves calls behind that do not end in time.
func (c *Cache) Close() error { return c.link.Close() }

// String names the server without its password, for logs.
func (c *Cache) String() string { return c.link.String() }

// Try is dedup.Cache's.
func (c *Cache) Try(ctx context.Context, owner string, keys []dedup.Key) ([]dedup.Found, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	mark := dedup.TryValue(owner)
	res, err := c.link.Do(ctx, tryTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, 0, 2*len(keys))
		for _, k := range keys {
			key := k.String()
			cmds = append(cmds,
				b.Set().Key(key).Value(mark).Nx().Px(c.cfg.TryTTL).Build(),
				b.Getrange().Key(key).Start(0).End(maxValue-1).Build()) // whatever is there, it costs little
		}
		return cmds
	})
	if err != nil {
		return nil, err
	}
	found := make([]dedup.Found, len(keys))
	for i := range keys {
		value, err := res[2*i+1].ToString()
		switch class := redis.ClassOf(err); {
		case err == nil && value == "": // not even the mark, for lack of room
		case err == nil:
			found[i] = dedup.ParseValue(value, owner)
		case class == dedup.WrongType:
			found[i].State = dedup.Unreadable
		default:
			return nil, &dedup.Error{Class: class, Err: err}
		}
	}
	return found, nil
}

// Confirm is dedup.Cache's.
func (c *Cache) Confirm(ctx context.Context, done []dedup.Confirmed) error {
	if len(done) == 0 {
		return nil
	}
	res, err := c.link.Do(ctx, redis.CallTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, len(done))
		for i, d := range done {
			cmds[i] = b.Set().Key(d.Key.String()).Value(d.Answer.Value()).Px(c.cfg.TTL).Build()
		}
		return cmds
	})
	return firstError(res, err)
}

// release removes a key if it holds what it is given.
const release = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// Cancel is dedup.Cache's.
func (c *Cache) Cancel(ctx context.Context, owner string, keys []dedup.Key) error {
	if len(keys) == 0 {
		return nil
	}
	res, err := c.link.Do(ctx, redis.CallTime, func(b rueidis.Builder) rueidis.Commands {
		cmds := make(rueidis.Commands, len(keys))
		for i, k := range keys {
			cmds[i] = b.Eval().Script(release).Numkeys(1).Key(k.String()).Arg(dedup.TryValue(owner)).Build()
		}
		return cmds
	})
	return firstError(res, err)
}

// firstError is the first error of a call.
func firstError(res []rueidis.RedisResult, err error) error {
	if err != nil {
		return err
	}
	for _, r := range res {
		if err := r.Error(); err != nil {
			return redis.Classified(err)
		}
	}
	return nil
}
