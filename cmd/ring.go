package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/peer"
)

func newRing(a *app) *cobra.Command {
	c := &cobra.Command{Use: "ring", Short: "Show which node has which conversations"}
	c.AddCommand(newRingShow(a), newRingExplain(a))
	return c
}

// addRole gives a command the flag that names a role with a ring.
func addRole(c *cobra.Command) *string {
	return c.Flags().String("role", "state", "role whose ring is meant: state or push")
}

func newRingShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "show",
		Short: "Show the nodes of a ring and their shares",
		Long: `Show asks one node for its ring: the nodes that get the calls of a role by hash,
and which part of all conversations each has. Nodes whose views agree have the
same ring.`,
		Example: "  imd ring show\n  imd ring show --role push -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	role := addRole(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := a.askRing(c.Context(), f, *role, "")
		if err != nil {
			return err
		}
		return a.printer().data(r, func(w io.Writer) {
			fmt.Fprintf(w, "ring of %s, %d points\n", r.Role, r.Points)
			var rows [][]string
			for _, n := range r.Nodes {
				rows = append(rows, []string{n.ID, fmt.Sprint(n.Weight), fmt.Sprintf("%.1f %%", n.Share*100)})
			}
			table(w, "NODE WEIGHT SHARE", rows)
		})
	}
	return c
}

func newRingExplain(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "explain KEY",
		Short: "Say which node has a conversation or a user",
		Long: `Explain asks one node where a key lies on its ring: a conversation id, or a user
id for what goes by user. The nodes after the first are those that would follow
if the ones before them were gone.`,
		Example: "  imd ring explain g_18442\n  imd ring explain alice -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	role := addRole(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		r, err := a.askRing(c.Context(), f, *role, args[0])
		if err != nil {
			return err
		}
		return a.printer().data(r, func(w io.Writer) {
			if r.Key == nil || len(r.Key.Order) == 0 {
				fmt.Fprintf(w, "no other node is known: calls of %s stay in the process\n", r.Role)
				return
			}
			fmt.Fprintf(w, "%s: hash %s, shard %d\n", r.Key.Key, r.Key.Hash, r.Key.Shard)
			for i, id := range r.Key.Order {
				word := "then "
				if i == 0 {
					word = "node "
				}
				fmt.Fprintln(w, word+id)
			}
		})
	}
	return c
}

// askRing reads the ring of a role from a node.
func (a *app) askRing(ctx context.Context, f *serverFlags, role, key string) (r peer.RingReport, err error) {
	if role != "state" && role != "push" {
		return r, usagef("--role %s: only state and push have rings", role)
	}
	base, err := f.base(opsURL)
	if err != nil {
		return r, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/statusz/ring?"+url.Values{"role": {role}, "key": {key}}.Encode(), nil)
	if err != nil {
		return r, err
	}
	res, err := (&http.Client{Transport: transport()}).Do(req)
	if err != nil {
		return r, newFailure(exitUnavailable, "unavailable", "the node does not answer: "+cause(err), "")
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&r); err != nil || res.StatusCode != http.StatusOK {
		return r, newFailure(exitFailed, "bad_answer", "what answers at "+strings.TrimPrefix(base, "http://")+" does not know its ring", "")
	}
	return r, nil
}
