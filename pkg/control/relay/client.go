package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
)

// maxAnswer bounds one answer: thousands of records.
const maxAnswer = 16 << 20

// ErrNobody says that no node of the view hands the registry on.
var ErrNobody = errors.New("relay: no node hands the registry on")

// Client asks one node after the other: it stays with one until that fails. Safe
// for concurrent use.
type Client struct {
	self   im.NodeID
	view   func() *control.View
	secret func() string
	http   *http.Client

	mu   sync.Mutex
	node im.NodeID // asked last; "" = none
	rpc  internalv1connect.RelayServiceClient
}

var _ control.Feed = (*Client)(nil)

// NewClient asks the nodes of view that have Relay, never self. secret is what
// the nodes of the cluster show each other.
func NewClient(self im.NodeID, view func() *control.View, secret func() string) *Client {
	c := &Client{self: self, view: view, secret: secret}
	c.http = &http.Client{Transport: signed{c, &http.Transport{ // no Proxy: variables of the environment are ignored
		DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: len(control.Areas()), IdleConnTimeout: 2 * MaxWait,
	}}}
	return c
}

// signed shows the secret with each request.
type signed struct {
	c    *Client
	next http.RoundTripper
}

// RoundTrip sends the request.
func (s signed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+s.c.secret())
	return s.next.RoundTrip(r)
}

// Changes asks a node; see control.Feed. After an error the next call asks
// another one, if there is one.
func (c *Client) Changes(ctx context.Context, area control.Area, at control.Cursor, wait time.Duration) (control.Batch, error) {
	rpc, err := c.pick()
	if err != nil {
		return control.Batch{}, err
	}
	res, err := rpc.Changes(ctx, &internalv1.ChangesRequest{Area: string(area), Since: at.Revision, EtcdCluster: at.Cluster, WaitMs: int32(wait.Milliseconds())})
	if err != nil {
		c.leave(rpc)
		return control.Batch{}, err
	}
	b := control.Batch{Cursor: control.Cursor{Revision: res.Revision, Cluster: res.EtcdCluster}, Full: res.Full}
	for _, r := range res.Records {
		b.Records = append(b.Records, control.Record{
			Key: r.Key, Value: r.Value, Revision: r.Revision, Created: r.Created, Version: r.Version, Lease: r.Lease, Gone: r.Gone,
		})
	}
	if err := check(b, at); err != nil {
		c.leave(rpc)
		return control.Batch{}, err
	}
	if b.Revision < at.Revision {
		c.leave(rpc) // it lags; another one may not
	}
	return b, nil
}

// errGarbage says that an answer cannot be one.
var errGarbage = errors.New("relay: the answer makes no sense")

// check refuses an answer that no feed gives to a subscriber at a cursor.
func check(b control.Batch, at control.Cursor) error {
	last := int64(0)
	if !b.Full {
		last = at.Revision
	}
	bad := b.Revision <= 0 || b.Cluster == 0 || !b.Full && (at.Revision == 0 || b.Cluster != at.Cluster || b.Revision < at.Revision)
	if !b.Full {
		last++ // what the subscriber has is not told again
	}
	for _, r := range b.Records {
		bad = bad || r.Key == "" || r.Revision < last || r.Revision > b.Revision || r.Gone && (b.Full || r.Value != nil)
		last = r.Revision
	}
	if bad {
		return errGarbage
	}
	return nil
}

// pick is the node of the last call, or a random other one.
func (c *Client) pick() (internalv1connect.RelayServiceClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rpc != nil {
		return c.rpc, nil
	}
	var all, others []control.Node
	for _, n := range c.view().Nodes {
		if !n.Relay || n.Ops == "" || n.ID == c.self || n.State == control.Draining || n.Standing == control.Suspect {
			continue
		}
		all = append(all, n)
		if n.ID != c.node {
			others = append(others, n)
		}
	}
	if len(others) == 0 {
		others = all
	}
	if len(others) == 0 {
		return nil, ErrNobody
	}
	n := others[rand.IntN(len(others))]
	c.node = n.ID
	c.rpc = internalv1connect.NewRelayServiceClient(connect.NewClient(connecthttp.NewTransport(c.http, "http://"+n.Ops, connecthttp.WithReadMaxBytes(maxAnswer))))
	return c.rpc, nil
}

// leave gives up a node, unless that was done already.
func (c *Client) leave(rpc internalv1connect.RelayServiceClient) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rpc == rpc {
		c.rpc = nil
	}
}

// Close ends idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
