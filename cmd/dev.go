package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// devKey signs the tokens of `imd dev`. Everybody knows it, so that links and
// examples keep working over restarts; nothing else may use it.
var devKey = module.TokenKey{ID: "dev", Secret: []byte("imd-development-key-everybody-knows-it")}

// demoLife is how long a demo user's token is good.
const demoLife = 12 * time.Hour

// demo is what `imd dev` adds to a node.
type demo struct {
	users     []string
	throwaway bool // the data folder goes at the end
}

func newDev(a *app) *cobra.Command {
	d := &demo{}
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole server to try things out, with demo users",
		Long: `Dev runs the same server as serve --roles=all, with demo users who need no
password and a key that everybody knows. It therefore listens on loopback
addresses only. Its data is thrown away at the end unless --data-dir is given.

GET /dev/users on the client listener gives the demo users and fresh tokens.`,
		Example: "  imd dev\n  imd dev --data-dir ./data\n  imd dev --users ann,ben,cem --listen 127.0.0.1:0",
		Args:    cobra.NoArgs,
	}
	c.Flags().StringSliceVar(&d.users, "users", []string{"alice", "bob"}, "demo users")
	s := addSettings(a, c)
	c.Flags().Lookup("data-dir").Usage = "folder for keys and data, which is kept (default: $IMD_DATA_DIR, else a new one that is thrown away)"
	c.RunE = func(c *cobra.Command, _ []string) error { return d.run(c, a, s) }
	return c
}

func (d *demo) run(c *cobra.Command, a *app, s *settingFlags) (err error) {
	if err := d.check(); err != nil {
		return err
	}
	cfg, err := s.load()
	if err != nil {
		return err
	}
	cfg.warn(a)
	if cfg.top.DataDir == "" {
		if cfg.top.DataDir, err = os.MkdirTemp("", "imd-dev-"); err != nil {
			return fmt.Errorf("a folder for throwaway data: %w", err)
		}
		d.throwaway = true
		defer func() { err = errors.Join(err, os.RemoveAll(cfg.top.DataDir)) }()
	}
	e := newEngine(a, cfg)
	e.demo = d
	return e.serve(c.Context())
}

func (d *demo) check() error {
	if len(d.users) == 0 {
		return usagef("--users: name at least one user")
	}
	for i, u := range d.users {
		if !protocol.ValidID(u) {
			return usagef("--users: %q is not 1 to 64 of a-z A-Z 0-9 . _ - @ +", u)
		}
		if slices.Contains(d.users[:i], u) {
			return usagef("--users: %s is there twice", u)
		}
	}
	return nil
}

// demoUser is one user of GET /dev/users.
type demoUser struct {
	UserID string `json:"userId"`
	Token  string `json:"token"`
}

// handler gives the demo users with fresh tokens, to programs on this machine
// only: not through a proxy, and not to a page of another name that resolves
// to a loopback address.
func (d *demo) handler(cfg auth.Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxied := r.Header.Get("Forwarded") != "" || r.Header.Get("X-Forwarded-For") != ""
		if !obs.Loopback(r.RemoteAddr) || !obs.Loopback(hostOnly(r.Host)) || proxied {
			http.Error(w, "demo users are for this machine only", http.StatusForbidden)
			return
		}
		users := make([]demoUser, 0, len(d.users))
		for _, u := range d.users {
			token, err := demoToken(cfg, u, time.Now())
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			users = append(users, demoUser{u, token})
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(map[string]any{"users": users}) // fails only if the client is gone
	})
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return hostport
}

// demoToken is a token of a demo user. Each is a login of its own.
func demoToken(cfg auth.Config, user string, now time.Time) (string, error) {
	return auth.Mint(auth.Key{ID: devKey.ID, Secret: devKey.Secret}, auth.Claims{
		User: im.UserID(user), Login: im.LoginID(newLogin()), Issuer: cfg.Issuer, IssuedAt: now, Expires: now.Add(min(demoLife, cfg.MaxLife)),
	}, cfg.Audience)
}
