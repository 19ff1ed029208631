package scheduler

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/webhook"
)

// WebhookConfig is the section "webhooks": who of the customer's backend is told
// what happens. Every node with the role scheduler wants the same.
type WebhookConfig struct {
	// Keep is how long events can be told, or told once more.
	Keep time.Duration `mapstructure:"keep" doc:"How long events are kept for receivers that are away and for replays; older ones are not told any more. 1h to 720h, default 72h."`
	// Receivers are those who are told.
	Receivers []ReceiverConfig `mapstructure:"receivers" doc:"Who is told of events: name, url, key_file, and events, timeout, concurrency, public_only, allow_plaintext, give_up. Default none."`
}

// ReceiverConfig is one receiver.
type ReceiverConfig struct {
	Name           string        `mapstructure:"name" doc:"Name of the receiver, 1 to 40 of a-z 0-9 -; where it stands is kept under it."`
	URL            string        `mapstructure:"url" doc:"Where events are posted."`
	KeyFile        string        `mapstructure:"key_file" doc:"File with the key that signs, at least 32 characters in a line; a second line is the former key."`
	Events         []string      `mapstructure:"events" doc:"Types of events; none = all about conversations. user.online and user.offline must be named."`
	Timeout        time.Duration `mapstructure:"timeout" doc:"Deadline of a request, 100ms to 30s, default 5s."`
	Concurrency    int           `mapstructure:"concurrency" doc:"Requests at once, 1 to 256, default 16."`
	PublicOnly     bool          `mapstructure:"public_only" doc:"Refuse to connect to private networks."`
	AllowPlaintext bool          `mapstructure:"allow_plaintext" doc:"Allow http to other machines."`
	GiveUp         time.Duration `mapstructure:"give_up" doc:"Age at which an event of a receiver that takes nothing becomes a dead letter, 1m to keep; default 24h."`
}

// PushConfig is the section "offline_push": who wakes devices that are not
// connected.
type PushConfig struct {
	URL            string        `mapstructure:"url" doc:"Where notices for users without a connected device are posted; empty, the default, means that there are none."`
	KeyFile        string        `mapstructure:"key_file" doc:"File with the key that signs, at least 32 characters in a line; a second line is the former key."`
	After          time.Duration `mapstructure:"after" doc:"How long connected devices may take to acknowledge before their user is notified all the same; 1s to 10m, default 10s."`
	Members        int           `mapstructure:"members" doc:"Groups with more members are never notified of; 2 to 10000, default 200."`
	Content        bool          `mapstructure:"content" doc:"Put what was written into the notices. Default false."`
	Timeout        time.Duration `mapstructure:"timeout" doc:"Deadline of a request, 100ms to 30s; default 5s."`
	Concurrency    int           `mapstructure:"concurrency" doc:"Requests at once, 1 to 256; default 16."`
	PublicOnly     bool          `mapstructure:"public_only" doc:"Refuse to connect to private networks. Default false."`
	AllowPlaintext bool          `mapstructure:"allow_plaintext" doc:"Allow http to other machines. Default false."`
}

// Defaults of one receiver.
const (
	defaultTimeout     = 5 * time.Second
	defaultConcurrency = 16
	defaultGiveUp      = 24 * time.Hour
)

// DefaultWebhookConfig is what an empty section means.
func DefaultWebhookConfig() WebhookConfig { return WebhookConfig{Keep: 72 * time.Hour} }

// DefaultPushConfig is what an empty section means.
func DefaultPushConfig() PushConfig {
	return PushConfig{After: 10 * time.Second, Members: 200, Timeout: defaultTimeout, Concurrency: defaultConcurrency}
}

var receiverRE = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// Validate reports every problem at once, each with its key. It opens no file.
func (c WebhookConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("webhooks."+format, args...)) }
	if c.Keep < time.Hour || c.Keep > 720*time.Hour {
		bad("keep: %v is not within 1h and 720h", c.Keep)
	}
	seen := map[string]bool{}
	for i, r := range c.Receivers {
		if !receiverRE.MatchString(r.Name) || seen[r.Name] {
			bad("receivers: the name %q of number %d is not 1 to 40 of a-z 0-9 -, or is there twice", r.Name, i+1)
		}
		seen[r.Name] = true
		if err := webhook.CheckURL(r.URL, r.AllowPlaintext); err != nil {
			bad("receivers: url of %s: %w", r.Name, err)
		}
		if r.KeyFile == "" {
			bad("receivers: key_file of %s must be set", r.Name)
		}
		for _, e := range r.Events {
			if !slices.Contains(outbox.Types(), e) {
				bad("receivers: events of %s: %q is none of %s", r.Name, e, strings.Join(outbox.Types(), ", "))
			}
		}
		if r.Timeout != 0 && (r.Timeout < 100*time.Millisecond || r.Timeout > 30*time.Second) {
			bad("receivers: timeout of %s: %v is not within 100ms and 30s", r.Name, r.Timeout)
		}
		if r.Concurrency < 0 || r.Concurrency > 256 {
			bad("receivers: concurrency of %s: %d is not within 1 and 256", r.Name, r.Concurrency)
		}
		if r.GiveUp != 0 && (r.GiveUp < time.Minute || r.GiveUp > c.Keep) {
			bad("receivers: give_up of %s: %v is not within 1m and keep", r.Name, r.GiveUp)
		}
	}
	return errors.Join(errs...)
}

// Validate reports every problem at once, each with its key. It opens no file.
func (c PushConfig) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("offline_push."+format, args...)) }
	if c.URL != "" {
		if err := webhook.CheckURL(c.URL, c.AllowPlaintext); err != nil {
			bad("url: %w", err)
		}
		if c.KeyFile == "" {
			bad("key_file: must be set")
		}
	}
	if c.After < time.Second || c.After > 10*time.Minute {
		bad("after: %v is not within 1s and 10m", c.After)
	}
	if c.Members < 2 || c.Members > 10_000 {
		bad("members: %d is not within 2 and 10000", c.Members)
	}
	if c.Timeout < 100*time.Millisecond || c.Timeout > 30*time.Second {
		bad("timeout: %v is not within 100ms and 30s", c.Timeout)
	}
	if c.Concurrency < 1 || c.Concurrency > 256 {
		bad("concurrency: %d is not within 1 and 256", c.Concurrency)
	}
	return errors.Join(errs...)
}

// limits are those of the receiver's window.
func (r ReceiverConfig) limits() outbox.Limits {
	l := outbox.DefaultLimits()
	l.Concurrency, l.GiveUp = or(r.Concurrency, defaultConcurrency), or(r.GiveUp, defaultGiveUp)
	return l
}

func or[T comparable](v, otherwise T) T {
	var none T
	if v == none {
		return otherwise
	}
	return v
}
