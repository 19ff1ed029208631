package imd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/outbox"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// errMoved ends requests whose connection is gone; they are made again on the
// next one.
var errMoved = errors.New("imd: the connection is gone")

// Client is one device of one user, connected as long as it can be. Close ends
// it and everything that waits on it.
type Client struct {
	opts Options
	addr address
	http *http.Client

	ctx    context.Context // ends with Close or a final error
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // the clock has something earlier to do
	tokens chan struct{} // holds one token: the right to fetch one
	slots  chan struct{} // one for each request of the application that may run
	began  time.Time

	changed chan struct{}
	online  chan struct{} // closed at the end of the first sync

	mu        sync.Mutex
	state     State
	changes   []StateChange
	err       error // why the client ended
	lastErr   error // why the last attempt failed
	closed    bool
	user      string
	device    string
	epoch     string
	features  []string
	syncToken string
	token     string
	tokenGood time.Time // until when the cached token is used
	gaveUp    unanswered
	ahead     time.Duration // of the server's clock
	cur       *session
	avail     chan struct{} // closed and replaced when cur or err changes
	outbox    *outbox.Outbox[*Outgoing]
	convs     map[string]*conv
	touched   uint64
	full      map[string]bool // conversations named by a full answer so far
	listing   bool            // syncToken is of a listing with more pages
	repair    bool            // that listing is made because of a digest
	doubt     bool            // no digest has agreed since the last full list that was to mend it
	repairs   int
	syncAgain bool
	syncAt    time.Time // the next sync for an unknown conversation, at the earliest
	history   []*historyJob
	reading   int // history requests of timelines that run
	synced    bool
	subs      map[*subscription]struct{}

	announced     AnnouncementCursor
	announcements []Announcement // not told yet
	announcing    chan struct{}  // capacity 1: there are some

	watches    map[*PresenceWatch]struct{}
	presence   map[string]Presence // of watched users
	watchN     uint64              // number of the newest question
	watchRetry time.Time           // when to ask again after a refusal; zero = not
	watchTries int
}

// Connect signs in and returns once the first sync has ended, so that
// Conversations is complete. It tries again after failures that may pass, until
// ctx ends; ctx means nothing to the client after that. An error that will not
// pass, such as a bad token, is returned at once, as an *Error.
func Connect(ctx context.Context, url string, opts Options) (*Client, error) {
	c, err := newClient(url, opts)
	if err != nil {
		return nil, err
	}
	c.start()
	select {
	case <-c.online:
		return c, nil
	case <-c.ctx.Done():
		c.Close()
		return nil, c.Err()
	case <-ctx.Done():
		last := c.lastError()
		c.Close()
		if last != nil {
			return nil, fmt.Errorf("imd: connect: %w (last: %w)", ctx.Err(), last)
		}
		return nil, fmt.Errorf("imd: connect: %w", ctx.Err())
	}
}

func newClient(url string, opts Options) (*Client, error) {
	addr, err := parseAddress(url)
	if err != nil {
		return nil, err
	}
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	c := &Client{
		opts:    opts,
		addr:    addr,
		http:    opts.HTTPClient,
		wake:    make(chan struct{}, 1),
		tokens:  make(chan struct{}, 1),
		slots:   make(chan struct{}, protocol.ServerRequestWindow/2),
		began:   time.Now(),
		changed: make(chan struct{}, 1),
		online:  make(chan struct{}),
		device:  opts.Device,
		avail:   make(chan struct{}),
		outbox:  outbox.New[*Outgoing](opts.OutboxLimit),
		convs:   make(map[string]*conv),
		subs:    make(map[*subscription]struct{}),

		announced:  opts.AnnouncedBefore,
		announcing: make(chan struct{}, 1),

		watches:  make(map[*PresenceWatch]struct{}),
		presence: make(map[string]Presence),
	}
	if c.http == nil {
		c.http = http.DefaultClient
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

func (c *Client) start() {
	c.wg.Go(c.run)
	c.wg.Go(c.runClock)
	if c.opts.OnAnnouncement != nil {
		go c.tellAnnouncements()
	}
	if c.opts.OnState != nil {
		go c.notifyState()
	}
}

// Close ends the client: what was received is acknowledged, the connection is
// closed, whoever waits gets ErrClosed. What is in the outbox and was not
// stored is lost. It may be called more than once.
func (c *Client) Close() error {
	c.mu.Lock()
	first := !c.closed
	c.closed = true
	if c.err == nil {
		c.err = ErrClosed
	}
	if first && c.cur != nil {
		c.flushAcks(time.Now(), true)
	}
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	c.mu.Lock()
	c.giveUp()
	c.mu.Unlock()
	return nil
}

// Err returns why the client ended: ErrClosed after Close, an *Error if the
// server ended it for good, or what its token source said. It is nil while the
// client lives.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Done is closed when the client has ended; Err tells why.
func (c *Client) Done() <-chan struct{} { return c.ctx.Done() }

// State returns where the client stands.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// UserID returns who the client is signed in as.
func (c *Client) UserID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.user
}

// DeviceID returns the device as the server knows it.
func (c *Client) DeviceID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.device
}

// Feature reports whether the server has a later part of the protocol, such as
// "recall".
func (c *Client) Feature(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.features {
		if f == name {
			return true
		}
	}
	return false
}

// OutboxLen returns how many messages wait to be stored.
func (c *Client) OutboxLen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outbox.Len()
}

// Repairs returns how often the client has asked for the full list of its
// conversations because the server's digest of their heads was another than its
// own: something that a sync should have told was lost. It is 0 as long as all is
// well.
func (c *Client) Repairs() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.repairs
}

// end ends the client for a reason that will not pass.
func (c *Client) end(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.setState(Idle, c.err, 0)
	c.giveUp()
	c.mu.Unlock()
	c.cancel()
}

// giveUp tells everybody who waits that the client has ended. The lock is held.
func (c *Client) giveUp() {
	for _, m := range c.outbox.All(func(*outbox.Message[*Outgoing]) bool { return true }) {
		c.outbox.Remove(m)
		m.Value.finish(Stored{}, c.err)
	}
	c.announce()
}

// announce wakes those who wait for a session. The lock is held.
func (c *Client) announce() {
	close(c.avail)
	c.avail = make(chan struct{})
	for sub := range c.subs {
		signal(sub.wake)
	}
}

func (c *Client) lastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

// ms is the clock of the timelines.
func (c *Client) ms(now time.Time) int64 { return now.Sub(c.began).Milliseconds() }

// runClock does what is due by time. It sleeps until the earliest of it.
func (c *Client) runClock() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		next := c.tick(time.Now())
		c.mu.Unlock()
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
	}
}

// tick does what is due and returns when to come again. The lock is held.
func (c *Client) tick(now time.Time) time.Time {
	next := now.Add(time.Minute)
	consider := func(at time.Time) {
		if at.Before(next) {
			next = at
		}
	}
	s := c.cur
	if s == nil || s.cause != nil {
		return next
	}
	if c.overdue(s, now, consider) {
		return next
	}
	if !s.refreshAt.IsZero() && c.opts.TokenFunc != nil {
		if now.Before(s.refreshAt) {
			consider(s.refreshAt)
		} else {
			s.refreshAt = time.Time{}
			c.wg.Go(func() { c.refresh(s) })
		}
	}
	for _, cv := range c.convs {
		at, ok := cv.tl.WakeAt()
		if !ok {
			continue
		}
		if at <= c.ms(now) {
			c.effects(cv, cv.tl.Tick(c.ms(now)))
			at, ok = cv.tl.WakeAt()
		}
		if ok {
			consider(c.began.Add(time.Duration(min(at, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond))
		}
	}
	if at, ok := c.flushAcks(now, false); ok {
		consider(at)
	}
	if !s.syncRetry.IsZero() {
		if now.Before(s.syncRetry) {
			consider(s.syncRetry)
		} else {
			c.sync(s, now)
		}
	}
	if !c.watchRetry.IsZero() {
		if now.Before(c.watchRetry) {
			consider(c.watchRetry)
		} else {
			c.askPresence()
		}
	}
	if c.syncAgain && !s.syncing {
		if now.Before(c.syncAt) {
			consider(c.syncAt)
		} else {
			c.syncAgain = false
			c.sync(s, now)
		}
	}
	c.pump(now)
	if at, ok := c.outbox.WakeAt(); ok && at.After(now) {
		consider(at)
	}
	return next
}

// overdue drops a connection that shows no life. The lock is held.
func (c *Client) overdue(s *session, now time.Time, consider func(time.Time)) bool {
	if silence := s.heard.Add(s.quiet); !now.Before(silence) {
		s.failLocked(lost("no sign of life"))
		return true
	} else {
		consider(silence)
	}
	for _, r := range s.pending {
		if !now.Before(r.deadline) {
			s.failLocked(lost("a request was not answered"))
			return true
		}
		consider(r.deadline)
	}
	if c.outbox.Overdue(now) {
		s.failLocked(lost("a send was not answered"))
		return true
	}
	return false
}

// pump writes what the outbox may write now. The lock is held.
func (c *Client) pump(now time.Time) {
	s := c.cur
	if s == nil || s.cause != nil || s.closing {
		return
	}
	for m := c.outbox.Next(now); m != nil; m = c.outbox.Next(now) {
		f := &clientv1.ClientFrame{}
		id := s.request(f, nil)
		f.Kind = &clientv1.ClientFrame_Send{Send: c.outbox.Write(m, id, now)}
	}
}
