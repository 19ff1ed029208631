package imd

import (
	"errors"
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// received takes the frames of one envelope.
func (c *Client) received(s *session, frames []*clientv1.ServerFrame) {
	if len(frames) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	s.heard = now
	for _, f := range frames {
		c.handle(s, f, now)
	}
	signal(c.wake)
}

// handle takes one frame. Frames of a session that was left are taken too,
// because the merge knows what it has. The lock is held.
func (c *Client) handle(s *session, f *clientv1.ServerFrame, now time.Time) {
	if c.opts.SendOnly {
		switch f.Kind.(type) {
		case *clientv1.ServerFrame_Deliver, *clientv1.ServerFrame_Head:
			return
		}
	}
	switch k := f.Kind.(type) {
	case *clientv1.ServerFrame_Welcome:
		c.welcome(s, k.Welcome, now)
	case *clientv1.ServerFrame_SendAck:
		c.sendAck(s, f.Id, k.SendAck, now)
	case *clientv1.ServerFrame_Deliver:
		c.deliver(k.Deliver, now)
	case *clientv1.ServerFrame_Head:
		cv := c.conv(k.Head.ConversationId)
		c.effects(cv, cv.tl.Head(c.ms(now), k.Head.Seq))
	case *clientv1.ServerFrame_Receipt:
		c.receipt(k.Receipt)
		s.answer(f)
	case *clientv1.ServerFrame_SyncResult:
		c.syncResult(s, k.SyncResult, now)
		s.answer(f)
	case *clientv1.ServerFrame_Presence:
		if f.Id != 0 {
			s.answer(f)
			return
		}
		if !s.retired { // else the session that has taken over may have told newer things
			c.tellPresence(k.Presence)
		}
	case *clientv1.ServerFrame_Typing:
		c.noteTyping(k.Typing, now)
	case *clientv1.ServerFrame_Announcement:
		c.announcement(k.Announcement)
	case *clientv1.ServerFrame_Ping:
		if k.Ping.IntervalMs > 0 {
			s.quiet = time.Duration(k.Ping.IntervalMs)*time.Millisecond + s.pong
		}
		s.send(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
	case *clientv1.ServerFrame_Drain:
		select {
		case s.drain <- k.Drain:
		default: // it is told already
		}
	case *clientv1.ServerFrame_Bye:
		s.bye = k.Bye
	case *clientv1.ServerFrame_HistoryResult, *clientv1.ServerFrame_RefreshResult, *clientv1.ServerFrame_Error:
		s.answer(f)
	}
}

// welcome makes a session the one that is written to.
func (c *Client) welcome(s *session, w *clientv1.Welcome, now time.Time) {
	if s.welcomed {
		return
	}
	s.welcomed = true
	if w.PingIntervalMs > 0 && w.PongTimeoutMs > 0 {
		s.pong = time.Duration(w.PongTimeoutMs) * time.Millisecond
		s.quiet = time.Duration(w.PingIntervalMs)*time.Millisecond + s.pong
	}
	c.user, c.device, c.features = w.UserId, w.DeviceId, w.Features
	c.ahead = time.UnixMilli(w.ServerTimeMs).Sub(now)
	c.tokenLasts(s, time.Duration(w.TokenExpireMs-w.ServerTimeMs)*time.Millisecond)
	if old := c.cur; old != nil {
		old.retire()
	}
	c.cur = s
	if c.epoch != "" && c.epoch != w.DataEpoch {
		c.resync(s)
	}
	c.epoch = w.DataEpoch
	c.history, c.reading = nil, 0
	for _, cv := range c.convs {
		cv.tl.Connected()
		cv.typedAt = time.Time{} // what was told last may not have left
	}
	c.outbox.Reconnected()
	c.setState(Online, nil, 0)
	c.pump(now)
	if len(c.watches) > 0 {
		c.askPresence()
	}
	close(s.ready)
	if c.opts.SendOnly {
		c.firstSync()
	}
	c.announce()
}

// firstSync lets Connect return.
func (c *Client) firstSync() {
	if !c.synced {
		c.synced = true
		close(c.online)
	}
}

// resync voids what is known of a store that has another history now.
func (c *Client) resync(s *session) {
	c.syncToken, c.full, c.listing, s.rest = "", nil, false, false
	c.repair, c.doubt = false, false
	clear(s.cursors)
	for _, cv := range c.convs {
		for _, id := range cv.tl.Resync() {
			c.refuse(id, &Error{Code: "aborted", Reason: protocol.ReasonResync, Message: "the message it is about is of a former history"})
		}
		cv.reset()
		cv.state, cv.term = nil, 0
		c.mark(cv)
	}
}

// refuse ends a message of the outbox.
func (c *Client) refuse(id string, err error) {
	if m := c.outbox.Withdraw(id); m != nil {
		m.Value.finish(Stored{}, err)
	}
}

// sessionEnded takes note that a connection is gone.
func (c *Client) sessionEnded(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s.abandon(errMoved)
	s.retired = true
	if c.cur != s {
		return
	}
	c.cur = nil
	c.history, c.reading = nil, 0
	for _, cv := range c.convs {
		cv.tl.Disconnected()
	}
	c.outbox.Reconnected()
	signal(c.wake)
}

func (c *Client) sendAck(s *session, frameID uint32, a *clientv1.SendAck, now time.Time) {
	if s.retired && a.Status != clientv1.Ack_ACK_OK {
		return // of a copy that is written again; another frame has its number now
	}
	switch a.Status {
	case clientv1.Ack_ACK_OK:
		if m := c.outbox.Stored(a.ClientMessageId); m != nil {
			m.Value.finish(storedByAck(a), nil)
		}
		if c.opts.SendOnly {
			break
		}
		cv := c.conv(a.ConversationId)
		cv.noteLive(a.PrevSeq)
		c.effects(cv, cv.tl.SendAck(c.ms(now), a))
	case clientv1.Ack_ACK_FAIL:
		m := c.outbox.Failed(frameID)
		if m == nil {
			return
		}
		err := fromWire(a.Error)
		m.Value.finish(Stored{}, err)
		if cv := c.convs[m.Conversation]; cv != nil {
			cv.tl.Fail(m.ID, err.Reason)
			c.mark(cv)
		}
	default:
		if m := c.outbox.Retry(frameID, a.Error, now); m != nil && a.Error != nil {
			m.Value.refusal.Store(fromWire(a.Error))
		}
	}
	c.pump(now)
}

func (c *Client) deliver(d *clientv1.Deliver, now time.Time) {
	cv := c.conv(d.ConversationId)
	c.takeStored(cv, d.Entries)
	if len(d.Entries) > 0 {
		cv.noteLive(d.Entries[0].PrevSeq)
	}
	c.effects(cv, cv.tl.Deliver(c.ms(now), d.Entries))
}

// takeStored takes out of the outbox what turns out to be in the log.
func (c *Client) takeStored(cv *conv, entries []*clientv1.Entry) {
	for _, e := range entries {
		if e.ClientMessageId == "" || e.Sender != c.user {
			continue
		}
		if m := c.outbox.Get(e.ClientMessageId); m != nil && m.Conversation == cv.id {
			c.outbox.Stored(m.ID)
			m.Value.finish(storedByEntry(cv.id, e), nil)
		}
	}
}

func (c *Client) receipt(r *clientv1.Receipt) {
	cv := c.convs[r.ConversationId]
	if cv == nil {
		return
	}
	if r.UserId == c.user {
		cv.tl.Receipt(r)
	}
	cv.noteReceipt(r)
	c.mark(cv)
}

// syncPause is between two syncs that unknown conversations ask for.
const syncPause = 200 * time.Millisecond

// sync asks which conversations changed, or goes on asking. The lock is held.
func (c *Client) sync(s *session, now time.Time) {
	c.syncAt = now.Add(syncPause)
	s.syncing, s.syncRetry = true, time.Time{}
	f := &clientv1.Sync{SyncToken: c.syncToken}
	if !c.repair { // what is here is not read again; what is missing is read after the end
		f.PageLimit = int32(c.opts.PageEntries)
	}
	clear(s.cursors)
	for _, cv := range c.recent() {
		// Only the token tells the server which history the cursors are of.
		if c.syncToken == "" || !cv.tl.Known() || len(f.Cursors) == protocol.MaxSyncCursors {
			continue
		}
		s.cursors[cv.id] = cv.tl.Have()
		f.Cursors = append(f.Cursors, &clientv1.Cursor{ConversationId: cv.id, Have: cv.tl.Have()})
	}
	s.request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: f}}, func(_ *clientv1.ServerFrame, err error) {
		if err == nil || errors.Is(err, errMoved) {
			return
		}
		// Refused for now: the session stays, or many clients that come back at
		// once would come back again and again.
		var e *Error
		if errors.As(err, &e) && e.Retryable && e.CloseCode == 0 {
			s.syncRetry = time.Now().Add(e.RetryAfter + backoff(s.syncTries, 0))
			s.syncTries++
			return
		}
		// Without a sync there is no session worth having.
		s.failLocked(err)
	})
}

func (c *Client) syncResult(s *session, r *clientv1.SyncResult, now time.Time) {
	if s != c.cur {
		return // another session's sync tells it all
	}
	if r.DataEpoch != c.epoch {
		// A token of this answer would be good and hide at the next welcome that
		// everything is void.
		s.failLocked(lost("the store has another history now"))
		return
	}
	for _, st := range r.Conversations {
		cv := c.conv(st.ConversationId)
		if st.Page != nil {
			c.takeStored(cv, st.Page.Entries)
		}
		cursor, ok := s.cursors[st.ConversationId]
		if !ok {
			cursor = timeline.NoCursor
		}
		cv.setState(st, c.user)
		c.effects(cv, cv.tl.State(c.ms(now), cursor, st))
		c.mark(cv)
	}
	if r.Full {
		if c.full == nil {
			c.full = make(map[string]bool)
		}
		for _, st := range r.Conversations {
			c.full[st.ConversationId] = true
		}
	}
	c.syncToken, c.listing, s.syncTries = r.SyncToken, r.More, 0
	if r.More {
		c.sync(s, now)
		return
	}
	if r.Full {
		c.forget(c.full)
	}
	if c.repair && r.Full { // not before: the answer may be lost with its session
		c.doubt = true
	}
	c.full, c.repair = nil, false
	if c.digest(r) {
		c.syncToken, c.repair, s.rest = "", true, false
		c.repairs++
		c.sync(s, now)
		return
	}
	if s.rest { // what it listed before this session began may have changed since
		s.rest, c.syncAgain = false, false
		c.sync(s, now)
		return
	}
	s.syncing = false
	for _, cv := range c.convs {
		c.effects(cv, cv.tl.Synced(c.ms(now)))
	}
	c.firstSync()
	c.announce()
}

// digest compares the digest of an answer with what syncs have told, and reports
// whether the full list is to be asked for. One that has come is enough: if the sums
// differ after it too, another would bring nothing new. The lock is held.
func (c *Client) digest(r *clientv1.SyncResult) bool {
	if r.Digest == 0 {
		return false
	}
	sum := uint64(0)
	for _, cv := range c.convs {
		sum += cv.term
	}
	if sum == r.Digest {
		c.doubt = false
		return false
	}
	again := !c.doubt && !r.Full
	c.doubt = c.doubt || r.Full
	return again
}

// forget drops conversations that a full answer does not name, save those with
// something under way.
func (c *Client) forget(named map[string]bool) {
	for id, cv := range c.convs {
		if named[id] {
			continue
		}
		if cv.term = 0; c.outbox.Busy(id) || !cv.tl.Known() {
			continue
		}
		c.mark(cv)
		delete(c.convs, id)
	}
}

// effects does what a timeline asks for. The lock is held.
func (c *Client) effects(cv *conv, fx timeline.Effects) {
	if fx.Reset {
		cv.reset()
	}
	cv.shown(fx.Show, c.user, c.opts.KeepItems)
	if len(fx.Show) > 0 {
		c.touched++
		cv.touched = c.touched
	}
	if fx.Sync && !c.syncAgain {
		c.syncAgain = true
		signal(c.wake)
	}
	if fx.History != nil {
		c.history = append(c.history, &historyJob{cv, *fx.History})
		c.readHistory()
	}
	if cv.tl.AckDue() && cv.ackAt.IsZero() {
		cv.ackAt = time.Now().Add(cv.ackDelay())
	}
	if len(fx.Show) > 0 || fx.Reset || len(fx.Sent) > 0 || len(fx.Changed) > 0 || cv.tl.Have() != cv.told {
		cv.told = cv.tl.Have()
		c.mark(cv)
	}
}

// historyJob is a request of a timeline that waits for its turn.
type historyJob struct {
	cv  *conv
	req timeline.Request
}

// historyJobs is how many requests of timelines run at once; a server reads on
// while no more than twice as many are unanswered.
const historyJobs = protocol.ServerRequestWindow / 4

// readHistory sends the requests of timelines, a few at a time. The lock is
// held.
func (c *Client) readHistory() {
	s := c.cur
	if s == nil {
		c.history = nil // each timeline asks again after the next sync
		return
	}
	for c.reading < historyJobs && len(c.history) > 0 {
		job := c.history[0]
		c.history = c.history[1:]
		c.reading++
		s.request(historyFrame(job.cv.id, job.req, c.jobLimit(job.req)), func(f *clientv1.ServerFrame, err error) {
			c.historyDone(s, job, f, err)
		})
	}
}

func (c *Client) jobLimit(req timeline.Request) int {
	if req.Jump {
		return c.opts.PageEntries
	}
	return protocol.MaxHistoryLimit
}

// refusedPause is before a refused request of a timeline is made again.
const refusedPause = time.Minute

func historyFrame(id string, req timeline.Request, limit int) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{
		ConversationId: id,
		AfterSeq:       req.After,
		BeforeSeq:      req.Before,
		Backward:       req.Backward,
		Limit:          int32(min(limit, protocol.MaxHistoryLimit)),
	}}}
}

func (c *Client) historyDone(s *session, job *historyJob, f *clientv1.ServerFrame, err error) {
	if s != c.cur || errors.Is(err, errMoved) {
		return // the timeline asks again after the next sync
	}
	c.reading--
	now := time.Now()
	switch {
	case err == nil:
		page := f.GetHistoryResult().GetPage()
		c.takeStored(job.cv, page.GetEntries())
		c.effects(job.cv, job.cv.tl.Page(c.ms(now), job.req, page))
	case retryable(err):
		job.cv.tl.HistoryFailed(c.ms(now), retryAfter(err).Milliseconds())
	default: // not a member any more, most likely; sync will tell
		job.cv.tl.HistoryFailed(c.ms(now), refusedPause.Milliseconds())
	}
	c.readHistory()
	signal(c.wake)
}

// ackRanges is how many ranges one ack frame holds.
const ackRanges = 256

// flushAcks acknowledges what is due by count or time, or everything, and
// returns when the next one is due. The lock is held.
func (c *Client) flushAcks(now time.Time, everything bool) (next time.Time, ok bool) {
	s := c.cur
	if s == nil {
		return next, false
	}
	var ranges []*clientv1.AckRange
	small := everything
	for _, cv := range c.convs {
		small = small || !cv.large() && cv.ackNow(now)
	}
	for _, cv := range c.convs {
		if cv.ackAt.IsZero() {
			continue
		}
		if !everything && !cv.ackNow(now) && (cv.large() || !small) {
			if !ok || cv.ackAt.Before(next) {
				next, ok = cv.ackAt, true
			}
			continue
		}
		for _, r := range cv.tl.TakeAcks() {
			ranges = append(ranges, &clientv1.AckRange{ConversationId: cv.id, AfterSeq: r.After, Seq: r.Seq})
		}
		if cv.large() && cv.unacked < cv.quota() {
			cv.most -= cv.unacked // keeps its place among the members
		} else {
			cv.most = protocol.AckEntries
		}
		cv.ackAt, cv.unacked = time.Time{}, 0
	}
	for part := range slices.Chunk(ranges, ackRanges) {
		s.send(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{Ranges: part}}})
	}
	return next, ok
}

// serverNow is the server's clock as far as it is known. The lock is held.
func (c *Client) serverNow() time.Time { return time.Now().Add(c.ahead) }
