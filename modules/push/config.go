package push

import (
	"errors"
	"fmt"
)

// Config is read once, at start.
type Config struct {
	// Workers is how many conversations are fanned out at once.
	Workers int `mapstructure:"workers" doc:"Conversations fanned out at the same time. 1 to 64."`
	// Queue is how many items may wait.
	Queue int `mapstructure:"queue" doc:"Items that may wait for their fan-out before state is told to wait. 100 to 1000000."`
	// QueueBytes is the same in bytes.
	QueueBytes int `mapstructure:"queue_bytes" doc:"The same in bytes; 4194304 to 4294967296, default 67108864."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config { return Config{Workers: 4, Queue: 20_000, QueueBytes: 64 << 20} }

// Validate reports every problem at once, each with its key.
func (c Config) Validate() error {
	var errs []error
	if c.Workers < 1 || c.Workers > 64 {
		errs = append(errs, fmt.Errorf("push.workers: %d is not within 1 and 64", c.Workers))
	}
	if c.Queue < 100 || c.Queue > 1_000_000 {
		errs = append(errs, fmt.Errorf("push.queue: %d is not within 100 and 1000000", c.Queue))
	}
	if c.QueueBytes < 4<<20 || c.QueueBytes > 4<<30 {
		errs = append(errs, fmt.Errorf("push.queue_bytes: %d is not within 4194304 and 4294967296", c.QueueBytes))
	}
	return errors.Join(errs...)
}
