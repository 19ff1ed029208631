package drill

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

const (
	callLimit  = 5 * time.Second  // of one call of the API
	callsLimit = 30 * time.Second // of a call with all its repetitions
	callPause  = 200 * ms         // before a repetition
	tokenLife  = 2 * time.Hour
	groupCall  = 500 // members that one call takes
)

// world is what a drill does through the API, as the operator of the cluster:
// past the proxies, so that faults of the clients' links do not reach it.
type world struct {
	node   *node   // keys and tokens are made for it
	doors  []*node // the API is asked at the first that runs
	key    string
	signer auth.Key
	hc     *http.Client
	// oneLogin says that of a user only one login may be in.
	oneLogin bool

	mu     sync.Mutex
	groups []group
	extra  map[string]bool // conversations made beside the load, or heard of otherwise
	read   map[string]bool // logs that were read
}

// group is a group that the load uses.
type group struct {
	conv, owner string
	members     []string
}

func newWorld(nodes []*node, signer auth.Key) *world {
	doors := slices.DeleteFunc(slices.Clone(nodes), func(n *node) bool { return n.proxy == nil })
	return &world{node: nodes[0], doors: doors, signer: signer, read: map[string]bool{}, extra: map[string]bool{},
		hc: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: 5 * time.Second}}}
}

// newSigner makes the key of all tokens of a drill, in a file that every gateway
// reads, and the assignment that names it.
func newSigner(dir string) (key auth.Key, set string, err error) {
	key = auth.Key{ID: "drill", Secret: []byte(crand.Text() + crand.Text())}
	path := filepath.Join(dir, "token.key")
	return key, "auth.keys=" + key.ID + ":HS256:" + path, os.WriteFile(path, key.Secret, 0o600)
}

// close lets go of connections.
func (w *world) close() { w.hc.CloseIdleConnections() }

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip sends the request with the token.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func (w *world) client(address, token string) *connect.Client {
	return connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: bearer{token, w.hc.Transport}}, "http://"+address))
}

// makeKey makes the API key that everything else is done with.
func (w *world) makeKey(ctx context.Context) error {
	admin, err := datadir.ReadAdminKey(w.node.dir)
	if err != nil {
		return err
	}
	return w.call(ctx, func(ctx context.Context) error {
		made, err := adminv1connect.NewKeyServiceClient(w.client(w.node.endpoints().Ops, admin)).CreateKey(ctx, &adminv1.CreateKeyRequest{Name: "drill"})
		if err == nil {
			w.key = made.Secret
		}
		return err
	})
}

// call repeats a call that may succeed later.
func (w *world) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callsLimit)
	defer cancel()
	for {
		one, done := context.WithTimeout(ctx, callLimit)
		err := f(one)
		done()
		if err == nil || !again(err) || !hold(ctx, callPause) {
			return err
		}
	}
}

// again reports whether a call may have another outcome when it is repeated.
// All calls here are idempotent.
func again(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeResourceExhausted, connect.CodeAborted, connect.CodeUnknown, connect.CodeInternal:
		return true
	}
	return false
}

func (w *world) conversations() imdv1connect.ConversationServiceClient {
	return imdv1connect.NewConversationServiceClient(w.client(alive(w.doors).endpoints().Public, w.key))
}

func (w *world) messages() imdv1connect.MessageServiceClient {
	return imdv1connect.NewMessageServiceClient(w.client(alive(w.doors).endpoints().Public, w.key))
}

func (w *world) users() imdv1connect.UserServiceClient {
	return imdv1connect.NewUserServiceClient(w.client(alive(w.doors).endpoints().Public, w.key))
}

// token signs a token for a login of the user: a new one, or where only one may be in always
// the same. It makes no call.
func (w *world) token(_ context.Context, user string) (string, error) {
	login := im.LoginID("load-" + user)
	if !w.oneLogin {
		login = im.LoginID(uuid.NewString())
	}
	return w.tokenOf(im.UserID(user), login)
}

// tokenOf is a token of one login of a user.
func (w *world) tokenOf(user im.UserID, login im.LoginID) (string, error) {
	p, now := w.node.endpoints(), time.Now()
	c := auth.Claims{User: user, Login: login, Issuer: p.Issuer, IssuedAt: now, Expires: now.Add(tokenLife)}
	audience := p.Audience
	if audience == "" {
		audience = auth.DefaultConfig().Audience
	}
	return auth.Mint(w.signer, c, audience)
}

// group makes a group for the load.
func (w *world) group(ctx context.Context, owner string, members []string) (string, error) {
	conv, err := w.makeGroup(ctx, owner, members)
	if err == nil {
		w.mu.Lock()
		w.groups = append(w.groups, group{conv, owner, members})
		w.mu.Unlock()
	}
	return conv, err
}

func (w *world) makeGroup(ctx context.Context, owner string, members []string) (conv string, err error) {
	id := uuid.NewString()
	first, rest := members[:min(len(members), groupCall)], members[min(len(members), groupCall):]
	err = w.call(ctx, func(ctx context.Context) error {
		made, err := w.conversations().Create(ctx, &imdv1.CreateRequest{RequestId: id, Name: "drill", UserIds: first, AsUser: owner})
		if err == nil {
			conv = made.ConversationId
		}
		return err
	})
	for part := range slices.Chunk(rest, groupCall) {
		if err == nil {
			err = w.addMembers(ctx, group{conv: conv, owner: owner}, part)
		}
	}
	return conv, err
}

func (w *world) addMembers(ctx context.Context, g group, users []string) error {
	id := uuid.NewString()
	return w.call(ctx, func(ctx context.Context) error {
		_, err := w.conversations().AddMembers(ctx, &imdv1.AddMembersRequest{ConversationId: g.conv, RequestId: id, UserIds: users, AsUser: g.owner})
		return err
	})
}

func (w *world) removeMembers(ctx context.Context, g group, users []string) error {
	id := uuid.NewString()
	return w.call(ctx, func(ctx context.Context) error {
		_, err := w.conversations().RemoveMembers(ctx, &imdv1.RemoveMembersRequest{ConversationId: g.conv, RequestId: id, UserIds: users, AsUser: g.owner})
		return err
	})
}

// host owns the groups that are made beside the load. It has no device, so that
// nothing it writes is expected in the records of one.
const host = "drill-host"

// post makes a group of users of the load, and its host writes a message into
// it.
func (w *world) post(ctx context.Context, rng *rand.Rand, size int) error {
	conv, err := w.aside(ctx, rng, size)
	if err != nil {
		return err
	}
	return w.write(ctx, conv)
}

// aside makes a group of users of the load, into which only its host writes.
func (w *world) aside(ctx context.Context, rng *rand.Rand, size int) (conv string, err error) {
	users := w.people()
	rng.Shuffle(len(users), func(i, j int) { users[i], users[j] = users[j], users[i] })
	if conv, err = w.makeGroup(ctx, host, users[:min(len(users), size)]); err == nil {
		w.heardOf(conv)
	}
	return conv, err
}

// heardOf takes note of a conversation that the load may not know, so that its log is read
// in the end.
func (w *world) heardOf(conv string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.extra[conv] = true
}

// write lets the host write a message into a conversation.
func (w *world) write(ctx context.Context, conv string) error {
	id := uuid.NewString()
	return w.call(ctx, func(ctx context.Context) error {
		_, err := w.messages().Send(ctx, &imdv1.SendRequest{To: &imdv1.SendRequest_ConversationId{ConversationId: conv}, ClientMessageId: id, AsUser: host,
			Content: &clientv1.Content{Value: &clientv1.Content_Text{Text: "welcome"}}})
		return err
	})
}

// nodeCall makes a call about nodes of the cluster to one of them.
func (w *world) nodeCall(ctx context.Context, by *node, do func(context.Context, adminv1connect.NodeServiceClient) error) error {
	key, err := datadir.ReadAdminKey(by.dir)
	if err != nil {
		return err
	}
	return w.call(ctx, func(ctx context.Context) error {
		return do(ctx, adminv1connect.NewNodeServiceClient(w.client(by.endpoints().Ops, key)))
	})
}

// block makes user refuse direct messages of the other, or take them again.
func (w *world) block(ctx context.Context, user, other string, on bool) error {
	return w.call(ctx, func(ctx context.Context) error {
		if on {
			_, err := w.users().Block(ctx, &imdv1.BlockRequest{UserId: other, AsUser: user})
			return err
		}
		_, err := w.users().Unblock(ctx, &imdv1.UnblockRequest{UserId: other, AsUser: user})
		return err
	})
}

// people are the users of the load that are in a group, in order.
func (w *world) people() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, g := range w.groups {
		all = append(append(all, g.owner), g.members...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// someGroups are n of the load's groups, or all if there are fewer.
func (w *world) someGroups(rng *rand.Rand, n int) []group {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.groups)
	slices.SortFunc(all, func(a, b group) int { return compare(a.owner, b.owner) })
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// log reads a page of a log as the system.
func (w *world) log(ctx context.Context, conv string, after int64, limit int) (page *clientv1.Page, err error) {
	w.mu.Lock()
	w.read[conv] = true
	w.mu.Unlock()
	err = w.call(ctx, func(ctx context.Context) error {
		res, err := w.messages().History(ctx, &imdv1.HistoryRequest{ConversationId: conv, AfterSeq: after, Limit: int32(limit)})
		page = res.GetPage()
		return err
	})
	if connect.CodeOf(err) == connect.CodePermissionDenied { // nobody ever wrote there: it does not exist
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read as the system: %w", err)
	}
	return page, nil
}

// unread are the conversations made beside the load whose logs nobody has read.
func (w *world) unread() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, conv := range slices.Sorted(maps.Keys(w.extra)) {
		if !w.read[conv] {
			all = append(all, conv)
		}
	}
	return all
}
