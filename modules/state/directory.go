package state

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Times and limits of the directory.
const (
	// loginTTL is how long the answer to Admit is remembered.
	loginTTL  = 2 * time.Second
	maxLogins = 8192
	// keyTTL is how long an API key is remembered, and that there is none.
	keyTTL  = 10 * time.Second
	maxKeys = 1024
	// tokenLifetime is the longest a token may be valid.
	tokenLifetime = 24 * time.Hour
	// maxReplaced is how many sessions one claim may replace.
	maxReplaced = 1000
	// kickTimeout bounds the calls that end sessions.
	kickTimeout = 800 * time.Millisecond
	// kickPause is how long to wait before the second of them; then twice as long.
	kickPause = 50 * time.Millisecond
)

// gatewayClient is what state asks of a gateway.
type gatewayClient interface {
	Kick(context.Context, *v1.KickRequest) (*v1.KickResponse, error)
}

// Directory implements DirectoryService on top of a State: users, blocks,
// logins and API keys.
type Directory struct{ s *State }

// Directory is the directory of the role.
func (s *State) Directory() Directory { return Directory{s} }

func checkUser(op, id string) error {
	if !protocol.ValidID(id) {
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the user id is malformed")
	}
	return nil
}

// User tells what is known of a user; see DirectoryService.
func (d Directory) User(ctx context.Context, req *v1.UserRequest) (*v1.UserResponse, error) {
	const op = "directory.User"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	u, err := c.store.User(ctx, im.UserID(req.UserId))
	if errors.Is(err, store.ErrNotFound) {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "there is no such user")
	}
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.UserResponse{UserId: string(u.ID), CreatedMs: u.Created.UnixMilli(), Disabled: u.Disabled}, nil
}

// SetUser makes a user known, or disables or enables it; see DirectoryService.
func (d Directory) SetUser(ctx context.Context, req *v1.SetUserRequest) (*v1.SetUserResponse, error) {
	const op = "directory.SetUser"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	user := im.UserID(req.UserId)
	err = settleCall(ctx, func() error { return c.store.SetDisabled(ctx, user, req.Disabled) })
	c.logins.forget(user)
	if err != nil {
		return nil, storeErr(op, err)
	}
	if req.Disabled {
		c.kick(ctx, &v1.KickRequest{UserId: req.UserId, Reason: im.ReasonName(clientv1.Reason_REASON_REVOKED)})
	}
	return &v1.SetUserResponse{}, nil
}

// SetBlock blocks or unblocks a user for another; see DirectoryService.
func (d Directory) SetBlock(ctx context.Context, req *v1.SetBlockRequest) (*v1.SetBlockResponse, error) {
	const op = "directory.SetBlock"
	if err := errors.Join(checkUser(op, req.UserId), checkUser(op, req.BlockedUserId)); err != nil {
		return nil, err
	}
	if req.UserId == req.BlockedUserId {
		return nil, badRequest(op, "nobody can block oneself")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	err = settleCall(ctx, func() error {
		return c.store.SetBlock(ctx, im.UserID(req.UserId), im.UserID(req.BlockedUserId), req.Blocked)
	})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.SetBlockResponse{}, nil
}

// maxMutes is the most mutes of one answer.
const maxMutes = 500

// SetMute mutes a conversation for a member, or lifts that; see DirectoryService.
func (d Directory) SetMute(ctx context.Context, req *v1.SetMuteRequest) (*v1.SetMuteResponse, error) {
	const op = "directory.SetMute"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	if req.ConversationId == "" {
		return nil, badRequest(op, "no conversation is named")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	err = settleCall(ctx, func() error {
		return c.store.SetMute(ctx, im.ConversationID(req.ConversationId), im.UserID(req.UserId), time.UnixMilli(req.UntilMs))
	})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.SetMuteResponse{}, nil
}

// Mutes lists what a user has muted; see DirectoryService.
func (d Directory) Mutes(ctx context.Context, req *v1.MutesRequest) (*v1.MutesResponse, error) {
	const op = "directory.Mutes"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	list, err := c.store.Mutes(ctx, im.UserID(req.UserId), im.ConversationID(req.AfterConversationId), min(max(int(req.Limit), 1), maxMutes))
	if err != nil {
		return nil, storeErr(op, err)
	}
	res := &v1.MutesResponse{}
	for _, m := range list {
		res.Mutes = append(res.Mutes, &v1.Mute{ConversationId: string(m.Conversation), UntilMs: m.Until.UnixMilli()})
	}
	return res, nil
}

// Admit tells whether a login may begin a session now; see DirectoryService.
func (d Directory) Admit(ctx context.Context, req *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	const op = "directory.Admit"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	refused, err := c.logins.admit(ctx, login{im.UserID(req.UserId), im.LoginID(req.LoginId), req.IssuedMs})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.AdmitResponse{RefusedReason: refused, DataEpoch: c.store.DataEpoch()}, nil
}

// AdmitMany is Admit for many logins, in one call to the store; see
// DirectoryService.
func (d Directory) AdmitMany(ctx context.Context, req *v1.AdmitManyRequest) (*v1.AdmitManyResponse, error) {
	const op = "directory.AdmitMany"
	if len(req.Requests) > store.MaxCallers {
		return nil, badRequest(op, "more than %d requests", store.MaxCallers)
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	res := &v1.AdmitManyResponse{Answers: make([]*v1.AdmitAnswer, len(req.Requests))}
	who, at := make([]login, 0, len(req.Requests)), make([]int, 0, len(req.Requests))
	for i, r := range req.Requests {
		if err := checkUser(op, r.GetUserId()); err != nil {
			res.Answers[i] = &v1.AdmitAnswer{Error: im.Wire(err)}
			continue
		}
		who, at = append(who, login{im.UserID(r.UserId), im.LoginID(r.LoginId), r.IssuedMs}), append(at, i)
	}
	epoch := c.store.DataEpoch()
	welcome := &v1.AdmitAnswer{Response: &v1.AdmitResponse{DataEpoch: epoch}} // one for all: nobody changes an answer
	for i, v := range c.logins.admitMany(ctx, who) {
		if v.err != nil {
			res.Answers[at[i]] = &v1.AdmitAnswer{Error: im.Wire(storeErr(op, v.err))}
			continue
		}
		if v.refused == "" {
			res.Answers[at[i]] = welcome
			continue
		}
		res.Answers[at[i]] = &v1.AdmitAnswer{Response: &v1.AdmitResponse{RefusedReason: v.refused, DataEpoch: epoch}}
	}
	return res, nil
}

// Revoke ends one login or all logins of a user and kicks their sessions; see
// DirectoryService. The row comes first, so that who is kicked cannot be back.
func (d Directory) Revoke(ctx context.Context, req *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	const op = "directory.Revoke"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	if req.LoginId != "" && !protocol.ValidID(req.LoginId) {
		return nil, im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the login id is malformed")
	}
	reason := clientv1.Reason_REASON_REVOKED
	if req.Reason != "" {
		reason = im.ReasonByName(req.Reason)
	}
	switch reason {
	case clientv1.Reason_REASON_REVOKED, clientv1.Reason_REASON_KICKED, clientv1.Reason_REASON_REPLACED:
	default:
		return nil, badRequest(op, "the reason is none of revoked, kicked and replaced")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	row := store.Revocation{User: im.UserID(req.UserId), Login: im.LoginID(req.LoginId), Reason: reason, Until: now.Add(tokenLifetime)}
	if req.UntilMs > 0 {
		row.Until = time.UnixMilli(req.UntilMs)
	}
	if row.Login == "" {
		row.IssuedBefore = now
	}
	err = settleCall(ctx, func() error { return c.store.RevokeLogin(ctx, row) })
	c.logins.forget(row.User)
	if err != nil {
		return nil, storeErr(op, err)
	}
	ended, deaf := c.kick(ctx, &v1.KickRequest{UserId: req.UserId, LoginId: req.LoginId, Reason: im.ReasonName(reason)})
	return &v1.RevokeResponse{Ended: ended, NotTold: deaf}, nil
}

// Prove notes which session of a login and device may send; see DirectoryService.
func (d Directory) Prove(ctx context.Context, req *v1.ProveRequest) (*v1.ProveResponse, error) {
	const op = "directory.Prove"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	if req.Session == nil || len(req.Replaced) > maxReplaced {
		return nil, badRequest(op, "a session and at most %d replaced ones are named", maxReplaced)
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	// A session may live a little longer than its token, and be told so late.
	claim := store.SessionClaim{User: im.UserID(req.UserId), Session: *proofOf(req.Session), Rank: req.Rank, Until: time.Now().Add(2 * tokenLifetime)}
	for _, r := range req.Replaced {
		claim.Replaced = append(claim.Replaced, *proofOf(r))
	}
	var epoch uint64
	err = settleCall(ctx, func() (err error) {
		epoch, err = c.store.ProveSession(ctx, claim)
		return err
	})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.ProveResponse{RouteEpoch: epoch}, nil
}

// proofOf is a proof as the store has it; nil = none.
func proofOf(p *v1.SessionProof) *store.SessionProof {
	if p == nil {
		return nil
	}
	return &store.SessionProof{Login: im.LoginID(p.LoginId), Device: im.DeviceID(p.DeviceId), Epoch: p.RouteEpoch}
}

// kick ends sessions on every gateway at once and returns how many, and the gateways
// that do not answer: they find out when they look their logins up again.
func (c *core) kick(ctx context.Context, req *v1.KickRequest) (ended int32, deaf []string) {
	ctx, cancel := context.WithTimeout(ctx, kickTimeout)
	defer cancel()
	nodes := map[im.NodeID]bool{c.Node: false} // value: is known to be a gateway
	for _, n := range c.View().Nodes {
		if n.Has("gateway") {
			nodes[n.ID] = true
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for node, known := range nodes {
		wg.Go(func() {
			res, err := c.Gateway(node).Kick(ctx, req)
			for wait := kickPause; known && err != nil && im.Retryable(err) && ctx.Err() == nil; wait *= 2 {
				select {
				case <-ctx.Done():
				case <-time.After(wait): // a gateway that was restarted has another address soon
					res, err = c.Gateway(node).Kick(ctx, req)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			ended += res.GetEnded()
			if err != nil && known {
				deaf = append(deaf, string(node))
				c.Log.Warn("a gateway did not end a user's sessions", obs.Peer(string(node)), obs.User(im.UserID(req.UserId)), zap.String("reason", req.Reason), obs.Err(err))
			}
		})
	}
	wg.Wait()
	slices.Sort(deaf)
	return ended, deaf
}

// login is what Admit is asked about.
type login struct {
	user   im.UserID
	id     im.LoginID
	issued int64 // milliseconds since 1970; 0 = not told, and held to be old
}

// loginStore is what logins ask of the message store.
type loginStore interface {
	PutUser(ctx context.Context, id im.UserID) (store.User, error)
	Revocations(ctx context.Context, user im.UserID) ([]store.Revocation, error)
	Callers(ctx context.Context, users []im.UserID) (map[im.UserID]store.Caller, error)
}

// logins answers Admit. Safe for concurrent use.
type logins struct {
	store   loginStore
	cache   *cache[login, string]
	changes atomic.Int64 // counts forget
}

func newLogins(s loginStore) *logins {
	return &logins{store: s, cache: newCache[login, string](loginTTL, maxLogins)}
}

// verdict is what became of one login. The zero value: it may begin a session.
type verdict struct {
	refused string // why not
	err     error  // nobody knows
}

// admit makes the user known and returns why the login is refused; "" = it is
// not.
func (l *logins) admit(ctx context.Context, who login) (string, error) {
	v := l.admitMany(ctx, []login{who})[0]
	return v.refused, v.err
}

// admitMany is admit for many logins, at most store.MaxCallers, and has a verdict
// for each.
func (l *logins) admitMany(ctx context.Context, who []login) []verdict {
	out := make([]verdict, len(who))
	open, users := make([]int, 0, len(who)), make([]im.UserID, 0, len(who))
	now := time.Now()
	for i, w := range who {
		refused, ok := l.cache.get(w, now)
		if out[i].refused = refused; !ok {
			open, users = append(open, i), append(users, w.user)
		}
	}
	if len(open) == 0 {
		return out
	}
	before := l.changes.Load()
	known, err := l.store.Callers(ctx, users)
	if err != nil {
		for _, i := range open {
			out[i].err = err
		}
		return out
	}
	var wg sync.WaitGroup // for those who come for the first time, whom the store makes known together
	for _, i := range open {
		if caller, ok := known[who[i].user]; ok {
			out[i] = l.judge(caller, who[i], before)
			continue
		}
		wg.Go(func() {
			caller, err := l.meet(ctx, who[i].user)
			if out[i].err = err; err == nil {
				out[i] = l.judge(caller, who[i], before)
			}
		})
	}
	wg.Wait()
	return out
}

// meet makes a user known.
func (l *logins) meet(ctx context.Context, user im.UserID) (c store.Caller, err error) {
	err = settleCall(ctx, func() (err error) {
		c.User, err = l.store.PutUser(ctx, user)
		return err
	})
	if err != nil {
		return c, err
	}
	c.Revocations, err = l.store.Revocations(ctx, user)
	return c, err
}

// judge decides about a login, and remembers it unless something has changed since
// before.
func (l *logins) judge(c store.Caller, who login, before int64) verdict {
	now := time.Now()
	v := verdict{refused: refusal(c.User, c.Revocations, who, now)}
	if l.changes.Load() == before { // what was read may be older than a change
		l.cache.put(who, v.refused, now)
	}
	return v
}

// refusal decides whether a login may begin a session.
func refusal(u store.User, rows []store.Revocation, who login, now time.Time) string {
	if u.Disabled {
		return im.ReasonName(clientv1.Reason_REASON_REVOKED)
	}
	for _, r := range rows {
		if now.After(r.Until) {
			continue
		}
		one := r.Login != "" && r.Login == who.id
		all := r.Login == "" && who.issued < r.IssuedBefore.UnixMilli()
		if one || all {
			return im.ReasonName(r.Reason)
		}
	}
	return ""
}

// forget makes the next Admit of a user read the store.
func (l *logins) forget(user im.UserID) {
	l.changes.Add(1)
	l.cache.drop(func(k login) bool { return k.user == user })
}
