package cmd

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// keyRow is an API key as `key list -o json` prints it.
type keyRow struct {
	KeyID   string     `json:"key_id"`
	Name    string     `json:"name"`
	Scopes  []string   `json:"scopes"`
	Created time.Time  `json:"created"`
	Revoked *time.Time `json:"revoked,omitempty"`
	Secret  string     `json:"secret,omitempty"` // only when it was just made
}

func newKeyRow(k *adminv1.ApiKey) keyRow {
	r := keyRow{KeyID: k.GetKeyId(), Name: k.GetName(), Scopes: k.GetScopes(), Created: time.UnixMilli(k.GetCreatedMs()).UTC()}
	if k.GetRevokedMs() > 0 {
		t := time.UnixMilli(k.GetRevokedMs()).UTC()
		r.Revoked = &t
	}
	return r
}

func newKey(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "key",
		Short: "Make, list and revoke the API keys of your backend",
	}
	c.AddCommand(newKeyCreate(a), newKeyList(a), newKeyRevoke(a))
	return c
}

func (f *serverFlags) keyService() (adminv1connect.KeyServiceClient, error) {
	client, err := f.admin()
	if err != nil {
		return nil, err
	}
	return adminv1connect.NewKeyServiceClient(client), nil
}

func newKeyCreate(a *app) *cobra.Command {
	var name string
	var scopes []string
	c := &cobra.Command{
		Use:   "create",
		Short: "Make an API key; its secret is shown once",
		Long: `Create prints the new key on standard output, and on standard error what it may
do. The server keeps only a hash of it. Programs send it as a bearer token:
Authorization: Bearer imd_...`,
		Example: "  imd key create --name backend\n  imd key create --name importer --scopes users,conversations",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.Flags().StringVar(&name, "name", "", "what the key is for")
	c.Flags().StringSliceVar(&scopes, "scopes", nil, "what it may do: users, tokens, conversations, messages (default: all)")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if name == "" {
			return usagef("--name: say what the key is for")
		}
		svc, err := f.keyService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.CreateKey(ctx, &adminv1.CreateKeyRequest{Name: name, Scopes: scopes})
		if err != nil {
			return err
		}
		row := newKeyRow(res.GetKey())
		row.Secret = res.GetSecret()
		return a.printer().data(row, func(w io.Writer) {
			fmt.Fprintln(w, row.Secret)
			fmt.Fprintf(a.errOut, "key %s may use %s; it is shown only now\n", row.KeyID, strings.Join(row.Scopes, ", "))
		})
	}
	return c
}

func newKeyList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "List the API keys, without their secrets",
		Example: "  imd key list",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error {
		svc, err := f.keyService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		res, err := svc.ListKeys(ctx, &adminv1.ListKeysRequest{})
		if err != nil {
			return err
		}
		rows := []keyRow{}
		for _, k := range res.GetKeys() {
			rows = append(rows, newKeyRow(k))
		}
		return a.printer().data(map[string]any{"keys": rows}, func(w io.Writer) {
			if len(rows) == 0 {
				fmt.Fprintln(w, "no keys; make one with imd key create --name NAME")
				return
			}
			printKeys(w, rows)
		})
	}
	return c
}

func printKeys(w io.Writer, rows []keyRow) {
	var out [][]string
	for _, k := range rows {
		state := "valid"
		if k.Revoked != nil {
			state = "revoked " + k.Revoked.Format(time.DateOnly)
		}
		out = append(out, []string{k.KeyID, k.Name, strings.Join(k.Scopes, ","), k.Created.Format(time.DateOnly), state})
	}
	table(w, "KEY NAME SCOPES CREATED STATE", out)
}

func newKeyRevoke(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "revoke KEY",
		Short:   "End an API key, within 10 s on every node",
		Example: "  imd key revoke abcdefghijklmnop",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		svc, err := f.keyService()
		if err != nil {
			return err
		}
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		if _, err := svc.RevokeKey(ctx, &adminv1.RevokeKeyRequest{KeyId: args[0]}); err != nil {
			return err
		}
		return a.printer().data(map[string]any{"key_id": args[0], "revoked": true}, func(w io.Writer) {
			fmt.Fprintf(w, "key %s is revoked\n", args[0])
		})
	}
	return c
}
