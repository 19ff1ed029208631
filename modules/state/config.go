package state

import "fmt"

// Config is read once, at start.
type Config struct {
	// Lanes is how many batches of sends may be on their way to the store at
	// once; 0 = as many as the store has use for.
	Lanes int `mapstructure:"lanes" doc:"Batches of sends on their way to the message store at the same time. 0 to 16; 0 = as many as the store has use for."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config { return Config{} }

// Validate reports what is out of range, with its key.
func (c Config) Validate() error {
	if c.Lanes < 0 || c.Lanes > 16 {
		return fmt.Errorf("state.lanes: %d is not within 0 and 16", c.Lanes)
	}
	return nil
}
