package imd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// tokenLife is the share of a token's life after which a new one is fetched.
const tokenLife = 0.8

// run connects, again and again, until the client ends.
func (c *Client) run() {
	attempt := 0
	for {
		c.mu.Lock()
		c.setState(Joining, nil, 0)
		c.mu.Unlock()
		s, err := c.join()
		if err == nil {
			began := time.Now()
			err = c.keep(s)
			if time.Since(began) >= backoffReset {
				attempt = 0
			}
		}
		if c.ctx.Err() != nil || !retryable(err) {
			c.end(err)
			return
		}
		told := retryAfter(err)
		pause := backoff(attempt, told)
		if told == 0 { // who is told when to come has reached a server
			attempt++
		}
		c.mu.Lock()
		c.setState(Waiting, err, pause)
		c.mu.Unlock()
		if !c.sleep(pause) {
			c.end(err)
			return
		}
	}
}

func retryAfter(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// sleep returns false if the client ended.
func (c *Client) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// join makes one connection and waits for its welcome.
func (c *Client) join() (*session, error) {
	token, err := c.currentToken(c.ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, protocol.ClientTimeout)
	defer cancel()
	t, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	s := c.startSession(t)
	c.mu.Lock()
	c.hello(s, token)
	c.mu.Unlock()
	select {
	case <-s.ready:
		return s, nil
	case <-s.ended:
	case <-ctx.Done():
		s.fail(lost("no welcome in time"))
		<-s.ended
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.welcomed && ReasonOf(s.cause) == "" {
		c.gaveUp.add(time.Now())
	}
	c.judge(s.cause)
	return nil, s.cause
}

func (c *Client) dial(ctx context.Context) (transport, error) {
	if c.opts.dial != nil {
		return c.opts.dial(ctx)
	}
	conn, err := DialRaw(ctx, c.addr.socket, DialOptions{
		Encoding:   c.opts.Encoding,
		HTTPClient: c.opts.HTTPClient,
		Header:     c.opts.Header,
	})
	if err != nil {
		return nil, err // not conn: a nil *Conn is no nil transport
	}
	return conn, nil
}

// hello writes hello and sync in one envelope. The lock is held.
func (c *Client) hello(s *session, token string) {
	hello := &clientv1.Hello{
		Version:    protocol.Version,
		MinVersion: protocol.MinVersion,
		Token:      token,
		DeviceId:   c.opts.Device,
		Class:      c.opts.Class,
		Client:     c.opts.Name,
	}
	if c.opts.OnAnnouncement != nil {
		hello.AnnouncementSeq, hello.AnnouncementEpoch = proto.Int64(c.announced.Seq), c.announced.Epoch
	}
	s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Hello{Hello: hello}}, nil)
	s.rest, c.syncAgain = c.listing, false
	if !c.opts.SendOnly {
		c.sync(s, time.Now())
	}
}

// keep lasts as long as there is a session, over moves from node to node. It
// returns why the last one ended.
func (c *Client) keep(s *session) error {
	for {
		select {
		case <-s.ended:
			c.mu.Lock()
			c.judge(s.cause)
			c.mu.Unlock()
			return s.cause
		case <-c.ctx.Done():
			s.stop()
			return ErrClosed
		case d := <-s.drain:
			if next := c.move(s, d); next != nil {
				s = next
			}
		}
	}
}

// move makes a second connection while the first still works, and lets the
// first go once the second stands. It returns nil if the first ended before that;
// then that end counts, unless it was this client's own doing.
func (c *Client) move(old *session, d *clientv1.Drain) *session {
	c.mu.Lock()
	c.setState(Draining, nil, 0)
	c.mu.Unlock()
	pause := time.Duration(d.ReconnectAfterMs) * time.Millisecond
	for attempt := 0; ; attempt++ {
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-old.ended:
			timer.Stop()
			c.mu.Lock()
			if ReasonOf(old.cause) == protocol.ReasonSuperseded && c.gaveUp.excuse(time.Now()) {
				old.cause = lost("moved, and lost the new connection")
			}
			c.mu.Unlock()
			return nil
		case <-c.ctx.Done():
			timer.Stop()
			return nil
		}
		s, err := c.join()
		if err == nil {
			old.stop()
			return s
		}
		if !retryable(err) {
			old.fail(err)
			return nil
		}
		pause = backoff(attempt, retryAfter(err))
	}
}

// judge decides what depends on more than the reason of an end: a token that the
// server called expired is forgotten, and superseded is a lost connection if the
// newer session may be an attempt of this client. The lock is held.
func (c *Client) judge(err error) {
	var e *Error
	if !errors.As(err, &e) {
		return
	}
	switch e.Reason {
	case protocol.ReasonTokenExpired:
		c.token = ""
		if c.opts.TokenFunc == nil {
			e.Retryable = false // there is no other one
		}
	case protocol.ReasonSuperseded:
		if c.gaveUp.excuse(time.Now()) {
			e.Retryable = true
		}
	}
}

// currentToken returns a token that is good for a connection or a call.
func (c *Client) currentToken(ctx context.Context) (string, error) {
	if c.opts.TokenFunc == nil {
		return c.opts.Token, nil
	}
	select {
	case c.tokens <- struct{}{}:
		defer func() { <-c.tokens }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	c.mu.Lock()
	token, good := c.token, c.tokenGood
	c.mu.Unlock()
	if token != "" && (good.IsZero() || time.Now().Before(good)) {
		return token, nil
	}
	return c.fetchToken(ctx)
}

// fetchToken asks the application. The right to fetch is held.
func (c *Client) fetchToken(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, protocol.ClientTimeout)
	defer cancel()
	token, err := c.opts.TokenFunc(ctx)
	if err != nil {
		return "", fmt.Errorf("imd: token: %w", err)
	}
	c.mu.Lock()
	c.token, c.tokenGood = token, time.Time{}
	c.mu.Unlock()
	return token, nil
}

// tokenLasts learns from the server how long the token lives. The lock is held.
func (c *Client) tokenLasts(s *session, life time.Duration) {
	now := time.Now()
	if life <= 0 {
		s.refreshAt, c.tokenGood = time.Time{}, now // it was not told, or is over
		return
	}
	s.refreshAt = now.Add(time.Duration(float64(life) * tokenLife))
	c.tokenGood = s.refreshAt
	signal(c.wake)
}

// refresh replaces the token of a session that stands.
func (c *Client) refresh(s *session) {
	select {
	case c.tokens <- struct{}{}:
	case <-c.ctx.Done():
		return
	}
	token, err := c.fetchToken(c.ctx)
	<-c.tokens
	c.mu.Lock()
	defer c.mu.Unlock()
	again := func() {
		s.refreshAt = time.Now().Add(backoffReset / 2)
		signal(c.wake)
	}
	switch {
	case errors.Is(err, ErrUnauthorized):
		s.failLocked(err)
		return
	case err != nil:
		again()
		return
	}
	f := &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_RefreshToken{RefreshToken: &clientv1.RefreshToken{Token: token}}}
	s.request(f, func(answer *clientv1.ServerFrame, err error) {
		if err != nil {
			c.token = ""
			again()
			return
		}
		life := time.UnixMilli(answer.GetRefreshResult().GetTokenExpireMs()).Sub(c.serverNow())
		c.tokenLasts(s, life)
	})
}
