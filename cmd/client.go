package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/datadir"
)

// serverFlags say which server a command talks to: the one of a data folder on
// this machine, or one by URL.
type serverFlags struct {
	app       *app
	dataDir   string
	server    string
	tokenFile string
}

// addServer gives a command the flags that name a server. what is the listener
// that --server means.
func addServer(a *app, c *cobra.Command, what string) *serverFlags {
	f := &serverFlags{app: a}
	addDataDir(c, &f.dataDir)
	c.Flags().StringVar(&f.server, "server", "", "URL of the "+what+" (default: $IMD_SERVER, else the node of the data folder)")
	c.Flags().StringVar(&f.tokenFile, "token-file", "", "file with the bearer token (default: $IMD_TOKEN_FILE, else the keys of the data folder)")
	return f
}

// addDataDir gives a command the flag that names a data folder.
func addDataDir(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "data-dir", "", "data folder of a node on this machine (default: $IMD_DATA_DIR, else the usual one)")
}

// folder is the data folder that a client command means.
func (a *app) folder(flag string) (string, error) {
	for _, dir := range []string{flag, a.getenv("IMD_DATA_DIR"), datadir.Default(a.getenv)} {
		if dir != "" {
			return dir, nil
		}
	}
	return "", usagef("there is no home folder; give --data-dir")
}

// endpoints reads where the node of a data folder listens.
func (a *app) endpoints(flag string) (dir string, p datadir.Endpoints, err error) {
	if dir, err = a.folder(flag); err != nil {
		return "", p, err
	}
	p, err = datadir.ReadEndpoints(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, p, newFailure(exitUnavailable, "not_running", "no node runs on data folder "+dir, "start one with imd serve or imd dev, or name one with --data-dir or --server")
	}
	return dir, p, err
}

// named is the server that was given by URL; "" = that of a data folder is meant.
func (f *serverFlags) named() string {
	if f.server == "" && f.dataDir == "" {
		return f.app.getenv("IMD_SERVER")
	}
	return f.server
}

// base is the server's URL without a slash at the end. pick chooses from those of a
// data folder.
func (f *serverFlags) base(pick func(datadir.Endpoints) string) (string, error) {
	if server := f.named(); server != "" {
		u, err := url.Parse(server)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return "", usagef("--server %s: must be a URL such as http://127.0.0.1:8420", server)
		}
		return strings.TrimRight(server, "/"), nil
	}
	dir, p, err := f.app.endpoints(f.dataDir)
	if err != nil {
		return "", err
	}
	at := pick(p)
	if at == "" {
		return "", newFailure(exitUnavailable, "starting", "the node of data folder "+dir+" does not listen there yet", "")
	}
	return strings.TrimRight(at, "/"), nil
}

// token is the bearer token from --token-file, or "" if none was named.
func (f *serverFlags) token() (string, error) {
	file := f.tokenFile
	if file == "" {
		file = f.app.getenv("IMD_TOKEN_FILE")
	}
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("token file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// admin is a client of the admin services on the ops listener.
func (f *serverFlags) admin() (*connect.Client, error) {
	base, err := f.base(opsURL)
	if err != nil {
		return nil, err
	}
	key, err := f.token()
	if err == nil && key == "" {
		key, err = f.adminKey()
	}
	if err != nil {
		return nil, err
	}
	hc := &http.Client{Transport: bearer{key, transport()}}
	return connect.NewClient(connecthttp.NewTransport(hc, base)), nil
}

func (f *serverFlags) adminKey() (string, error) {
	dir, err := f.app.folder(f.dataDir)
	if err != nil {
		return "", err
	}
	key, err := datadir.ReadAdminKey(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", newFailure(exitNotAllowed, "no_key", "there is no admin key in data folder "+dir, "name its file with --token-file")
	}
	return key, err
}

// bounded is a context for one conversation with a server.
func (a *app) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.timeout)
}

// transport goes straight to the server: proxies of the environment are for
// the web, not for the ops listener.
func transport() *http.Transport {
	return &http.Transport{
		DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second, MaxIdleConns: 4, IdleConnTimeout: 30 * time.Second, ForceAttemptHTTP2: true,
	}
}

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
