package obs

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	beat      = time.Second      // between two beats
	deadAfter = 10 * time.Second // without a beat the process counts as stuck
)

// Pulse beats once a second for as long as the process gets processor time,
// and tells systemd what the process does. Without systemd it only beats.
type Pulse struct {
	start  time.Time
	last   atomic.Int64  // the last beat, in ns since start; steps of the wall clock do not matter
	socket bool          // systemd wants to hear
	every  time.Duration // between two signs of life; 0 = not wanted
}

// NewPulse makes a pulse that counts as beating now.
func NewPulse(getenv func(string) string) *Pulse {
	p := &Pulse{start: time.Now(), socket: getenv("NOTIFY_SOCKET") != ""}
	if d, err := daemon.SdWatchdogEnabled(false); err == nil {
		p.every = d / 2
	}
	return p
}

// Run beats until ctx is done.
func (p *Pulse) Run(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	var fed time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p.last.Store(int64(now.Sub(p.start)))
			if p.every > 0 && now.Sub(fed) >= min(p.every, 5*beat) {
				fed = now
				p.notify(daemon.SdNotifyWatchdog)
			}
		}
	}
}

// Alive reports whether a beat came lately.
func (p *Pulse) Alive(now time.Time) bool {
	return now.Sub(p.start)-time.Duration(p.last.Load()) < deadAfter
}

// Ready tells systemd that the service is up.
func (p *Pulse) Ready(status string) { p.notify(daemon.SdNotifyReady + "\nSTATUS=" + status) }

// Status tells systemd what the process does now.
func (p *Pulse) Status(status string) { p.notify("STATUS=" + status) }

// Stopping tells systemd that the service ends within the grace.
func (p *Pulse) Stopping(grace time.Duration) {
	p.notify(fmt.Sprintf("%s\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=%d", daemon.SdNotifyStopping, (grace + 5*time.Second).Microseconds()))
}

// notify is best effort: systemd notices a service that does not answer.
func (p *Pulse) notify(state string) {
	if p.socket {
		_, _ = daemon.SdNotify(false, state)
	}
}

// Cause is the innermost text of a network or file error, without the
// addresses and operations around it.
func Cause(err error) string {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err.Error()
		}
		next := u.Unwrap()
		if next == nil {
			return err.Error()
		}
		if _, dns := next.(*net.DNSError); dns {
			return next.Error()
		}
		err = next
	}
}
