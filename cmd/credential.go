package cmd

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// tokenLife is how long the tokens are good that a client command makes for
// itself; it makes new ones before they expire.
const tokenLife = time.Hour

// credential makes tokens for users, with what a client command has: the keys
// of a data folder, an API key, or one user's token.
type credential struct {
	ring   *keyring // of a data folder; nil = none
	bearer string   // from --token-file
	base   string
	own    bool // base is what the node of a data folder has said

	mu   sync.Mutex
	api  imdv1connect.TokenServiceClient
	wire http.RoundTripper // nil = none was wanted yet
}

// credential finds out what the command may use. It is an API key or a user's
// token if --token-file names one, else the keys of the data folder.
func (f *serverFlags) credential() (*credential, error) {
	base, err := f.base(publicURL)
	if err != nil {
		return nil, err
	}
	bearer, err := f.token()
	if err != nil || bearer != "" {
		return &credential{bearer: bearer, base: base, own: f.named() == ""}, err
	}
	dir, p, err := f.app.endpoints(f.dataDir)
	var none *failure
	if errors.As(err, &none) && none.Exit == exitUnavailable && f.named() != "" {
		return nil, newFailure(exitNotAllowed, "no_key", "there is no token for "+base+", and no node runs on data folder "+dir+" whose keys might do",
			"name a file with a user's token or an API key with --token-file, or a node's folder with --data-dir")
	}
	if err != nil {
		return nil, err
	}
	keys, err := datadir.ReadTokenKeys(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, newFailure(exitNotAllowed, "no_key", "there is no token key in data folder "+dir, "name a file with a user's token or an API key with --token-file")
	}
	if err != nil {
		return nil, err
	}
	cfg := auth.DefaultConfig()
	if p.Audience != "" {
		cfg.Audience = p.Audience
	}
	cfg.Issuer = p.Issuer
	return &credential{ring: &keyring{keys: keys, auth: cfg}, base: base, own: f.named() == ""}, nil
}

// token is a token for the user under one login. A user's own token is given
// as it is, whatever the user.
func (c *credential) token(ctx context.Context, user, login string) (string, error) {
	switch {
	case c.ring != nil:
		m, err := c.ring.mint(wish{user: user, login: login, ttl: tokenLife}, time.Now())
		return m.Token, err
	case auth.IsAPIKey(c.bearer):
		res, err := c.tokens().Mint(ctx, &imdv1.MintRequest{UserId: user, LoginId: login, TtlSeconds: int64(tokenLife / time.Second)})
		return res.GetToken(), err
	default:
		return c.bearer, nil
	}
}

func (c *credential) tokens() imdv1connect.TokenServiceClient {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == nil {
		hc := &http.Client{Transport: bearer{c.bearer, c.transport()}}
		c.api = imdv1connect.NewTokenServiceClient(connect.NewClient(connecthttp.NewTransport(hc, c.base)))
	}
	return c.api
}

// transport is shared by all clients, so that they share connections; c.mu is
// held. The certificate of a node of this machine names what its clients call it,
// not its address here, and only its own user can write where that stands.
func (c *credential) transport() http.RoundTripper {
	if c.wire == nil {
		t := transport()
		if c.own {
			t.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
		}
		c.wire = t
	}
	return c.wire
}

// client makes connections of the SDK.
func (c *credential) client() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &http.Client{Transport: c.transport()}
}

// conversations is a client of the conversation service as the user.
func (c *credential) conversations(ctx context.Context, user string) (imdv1connect.ConversationServiceClient, error) {
	token, err := c.token(ctx, user, newLogin())
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	hc := &http.Client{Transport: bearer{token, c.transport()}}
	c.mu.Unlock()
	return imdv1connect.NewConversationServiceClient(connect.NewClient(connecthttp.NewTransport(hc, c.base))), nil
}
