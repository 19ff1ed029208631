package cmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func newToken(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "token",
		Short: "Make and examine the tokens of users, without a server",
	}
	c.AddCommand(newTokenMint(a), newTokenVerify(a))
	return c
}

// newLogin is the id of a new login.
func newLogin() string { return datadir.RandomID("l-", 10) }

// keyring is what tokens are made and judged with, from files alone.
type keyring struct {
	keys []module.TokenKey // newest first
	auth auth.Config
}

// openKeyring reads the token keys of a data folder and the section "auth".
func openKeyring(a *app, s *settingFlags) (*keyring, error) {
	l, err := s.load()
	if err != nil {
		return nil, err
	}
	dir, err := a.folder(l.top.DataDir)
	if err != nil {
		return nil, err
	}
	keys, err := datadir.ReadTokenKeys(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, newFailure(exitNotFound, "no_key", "there is no token key in data folder "+dir, "start a node there first, or name its folder with --data-dir")
	}
	if err != nil {
		return nil, err
	}
	if p, err := datadir.ReadEndpoints(dir); err == nil && p.Dev {
		keys = append(keys, devKey)
	}
	return &keyring{keys: keys, auth: l.auth}, nil
}

// authKeys are the keys as the verifier takes them.
func (k *keyring) authKeys() []auth.Key {
	out := make([]auth.Key, 0, len(k.keys))
	for _, t := range k.keys {
		out = append(out, auth.Key{ID: t.ID, Secret: t.Secret})
	}
	return out
}

// minted is a token as `token mint -o json` prints it.
type minted struct {
	Token   string    `json:"token"`
	KeyID   string    `json:"key_id"`
	User    string    `json:"user_id"`
	Login   string    `json:"login_id"`
	Device  string    `json:"device_id,omitempty"`
	Class   string    `json:"class,omitempty"`
	Expires time.Time `json:"expires"`
}

// wish is what a token shall say.
type wish struct {
	user, login, device, class string
	ttl                        time.Duration
}

func newTokenMint(a *app) *cobra.Command {
	var w wish
	c := &cobra.Command{
		Use:   "mint",
		Short: "Make a token for a user",
		Long: `Mint signs a token with the newest key of the data folder. It needs no running
node, and users need not exist before. Whoever holds the token is that user until
it expires.`,
		Example: "  imd token mint --user alice\n  imd token mint --user alice --ttl 15m --device laptop-1 --class desktop",
		Args:    cobra.NoArgs,
	}
	s := addKeySettings(a, c)
	c.Flags().StringVar(&w.user, "user", "", "user id")
	c.Flags().DurationVar(&w.ttl, "ttl", time.Hour, "how long the token is good")
	c.Flags().StringVar(&w.login, "login", "", "login id; the same one again is the same login (default: a new one)")
	c.Flags().StringVar(&w.device, "device", "", "device id (default: the client names it)")
	c.Flags().StringVar(&w.class, "class", "", "device class: phone, tablet, web, desktop or bot (default: the client names it)")
	c.RunE = func(*cobra.Command, []string) error {
		ring, err := openKeyring(a, s)
		if err != nil {
			return err
		}
		m, err := ring.mint(w, time.Now())
		if err != nil {
			return err
		}
		return a.printer().data(m, func(out io.Writer) { fmt.Fprintln(out, m.Token) })
	}
	return c
}

// mint makes the token.
func (k *keyring) mint(w wish, now time.Time) (minted, error) {
	if w.login == "" {
		w.login = newLogin()
	}
	for _, id := range []struct{ flag, value string }{{"--user", w.user}, {"--login", w.login}, {"--device", w.device}} {
		if id.value == "" && id.flag == "--device" {
			continue
		}
		if !protocol.ValidID(id.value) {
			return minted{}, usagef("%s: %q is not 1 to 64 of a-z A-Z 0-9 . _ - @ +", id.flag, id.value)
		}
	}
	if w.class != "" && !im.Class(w.class).Valid() {
		return minted{}, usagef("--class: %q is none of phone, tablet, web, desktop, bot", w.class)
	}
	if w.ttl <= 0 || w.ttl > k.auth.MaxLife {
		return minted{}, usagef("--ttl: %s is not above 0 and up to %s (auth.max_life)", w.ttl, config.Text(k.auth.MaxLife))
	}
	m := minted{KeyID: k.keys[0].ID, User: w.user, Login: w.login, Device: w.device, Class: w.class, Expires: now.Add(w.ttl).UTC().Truncate(time.Millisecond)}
	var err error
	m.Token, err = auth.Mint(k.authKeys()[0], auth.Claims{
		User: im.UserID(w.user), Login: im.LoginID(w.login), Device: im.DeviceID(w.device), Class: im.Class(w.class),
		Issuer: k.auth.Issuer, IssuedAt: now, Expires: m.Expires,
	}, k.auth.Audience)
	return m, err
}

// verdict is a judged token as `token verify -o json` prints it.
type verdict struct {
	Valid     bool       `json:"valid"`
	Reason    string     `json:"reason,omitempty"`
	Problem   string     `json:"problem,omitempty"`
	User      string     `json:"user_id,omitempty"`
	Login     string     `json:"login_id,omitempty"`
	Device    string     `json:"device_id,omitempty"`
	Class     string     `json:"class,omitempty"`
	Audience  []string   `json:"audience,omitempty"`
	Issuer    string     `json:"issuer,omitempty"`
	KeyID     string     `json:"key_id,omitempty"`
	Algorithm string     `json:"algorithm,omitempty"`
	KnownKeys []string   `json:"known_keys"`
	IssuedAt  *time.Time `json:"issued_at,omitempty"`
	Expires   *time.Time `json:"expires,omitempty"`
}

func newTokenVerify(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "verify TOKEN",
		Short: "Say whether a token is good, and if not, why",
		Long: `Verify judges a token with the keys of the data folder and the section auth of
the configuration: if the node has a configuration file, give the same one with
--config. It does not know revocations, which a node would ask for.
With - it reads the token from standard input.

Exit status: 0 if the token is good, 4 if it is not.`,
		Example: "  imd token verify --config imd.yaml eyJhbGciOi...\n  imd token mint --user alice | imd token verify -",
		Args:    cobra.ExactArgs(1),
	}
	s := addKeySettings(a, c)
	c.RunE = func(c *cobra.Command, args []string) error {
		text := args[0]
		if text == "-" {
			data, err := io.ReadAll(io.LimitReader(c.InOrStdin(), 2*auth.MaxToken))
			if err != nil {
				return err
			}
			text = strings.TrimSpace(string(data))
		}
		ring, err := openKeyring(a, s)
		if err != nil {
			return err
		}
		v, err := ring.judge(text, time.Now())
		if err != nil {
			return err
		}
		if err := a.printer().data(v, func(w io.Writer) { v.print(w, time.Now()) }); err != nil || v.Valid {
			return err
		}
		f := newFailure(exitNotAllowed, v.Reason, v.Problem, "")
		f.quiet = true
		return f
	}
	return c
}

func (k *keyring) judge(token string, now time.Time) (verdict, error) {
	ver, err := auth.NewVerifier(k.auth, k.authKeys)
	if err != nil {
		return verdict{}, &module.ConfigError{Err: err}
	}
	e := ver.Explain(token, now)
	v := verdict{Valid: e.Valid, KnownKeys: k.ids()}
	if !e.Valid {
		v.Reason = im.ReasonName(e.Reason())
		v.Problem = im.Wire(e.Problem).GetMessage()
	}
	if e.Readable {
		v.User, v.Login, v.Device, v.Class = string(e.Claims.User), string(e.Claims.Login), string(e.Claims.Device), string(e.Claims.Class)
		v.Audience, v.Issuer, v.KeyID, v.Algorithm = e.Audience, e.Claims.Issuer, e.KeyID, e.Algorithm
		v.IssuedAt, v.Expires = when(e.Claims.IssuedAt), when(e.Claims.Expires)
	}
	return v, nil
}

// ids names all keys that tokens are judged with: those of the data folder, then
// those of the configuration.
func (k *keyring) ids() []string {
	out := []string{}
	for _, t := range k.keys {
		out = append(out, t.ID)
	}
	for _, spec := range k.auth.Keys {
		id, _, _ := strings.Cut(spec, ":")
		out = append(out, id)
	}
	return out
}

func when(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// print writes the verdict for people; what an invalid token says is not to be
// believed, and stands there to find the mistake.
func (v verdict) print(w io.Writer, now time.Time) {
	if v.Valid {
		fmt.Fprintln(w, "valid")
	} else {
		fmt.Fprintf(w, "not valid: %s (%s)\n", v.Problem, v.Reason)
	}
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "  %-12s%q\n", name, value)
		}
	}
	line("user", v.User)
	line("login", v.Login)
	line("device", v.Device)
	line("class", v.Class)
	line("audience", strings.Join(v.Audience, " "))
	line("issuer", v.Issuer)
	line("key", strings.TrimSpace(v.KeyID+" "+v.Algorithm))
	if !v.Valid {
		line("known keys", strings.Join(v.KnownKeys, " "))
	}
	at := func(name string, t *time.Time) {
		if t == nil {
			return
		}
		ago := "in " + span(t.Sub(now))
		if t.Before(now) {
			ago = span(now.Sub(*t)) + " ago"
		}
		fmt.Fprintf(w, "  %-12s%s, %s\n", name, t.Format(time.RFC3339), ago)
	}
	at("issued", v.IssuedAt)
	at("expires", v.Expires)
}
