package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/status"
)

// pageLimit bounds the page that a command reads.
const pageLimit = 16 << 20

func newRoute(a *app) *cobra.Command {
	c := &cobra.Command{Use: "route", Short: "Show where users are connected"}
	c.AddCommand(newRouteShow(a))
	return c
}

func newRouteShow(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "show USER",
		Short: "Show the sessions of a user and the gateways that hold them",
		Long: `Show asks the route store, through one node with the role gateway or push, which
sessions a user has now. What is not listed gets no live messages there; a device
that is connected and not listed is one whose route was lost.`,
		Example: "  imd route show alice\n  imd route show alice -o json",
		Args:    cobra.ExactArgs(1),
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, args []string) error {
		var r status.RoutesStatus
		if err := f.page(c.Context(), "/statusz/routes/"+url.PathEscape(args[0]), &r); err != nil {
			return err
		}
		return a.printer().data(r, func(w io.Writer) {
			if len(r.Routes) == 0 {
				fmt.Fprintln(w, r.User+" has no sessions")
				return
			}
			var rows [][]string
			for _, s := range r.Routes {
				rows = append(rows, []string{s.Session, s.Login, s.Device, s.Class, s.Node, fmt.Sprint(s.Epoch), span(time.Since(s.Since))})
			}
			table(w, "SESSION LOGIN DEVICE CLASS NODE EPOCH AGE", rows)
		})
	}
	return c
}

// page reads a page of the ops listener, with the admin key, into v.
func (f *serverFlags) page(ctx context.Context, path string, v any) error {
	base, err := f.base(opsURL)
	if err != nil {
		return err
	}
	key, err := f.token()
	if err == nil && key == "" {
		key, err = f.adminKey()
	}
	if err != nil {
		return err
	}
	ctx, cancel := f.app.bounded(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Client{Transport: bearer{key, transport()}}).Do(req)
	if err != nil {
		return newFailure(exitUnavailable, "unavailable", "the node does not answer: "+cause(err), "")
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, pageLimit))
	if err != nil {
		return newFailure(exitUnavailable, "unavailable", "the answer was cut off: "+cause(err), "")
	}
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized:
		return newFailure(exitNotAllowed, "unauthenticated", "the node does not take this admin key", "name its file with --token-file")
	case http.StatusBadRequest:
		return newFailure(exitUsage, "bad_request", strings.TrimSpace(string(body)), "")
	case http.StatusNotFound:
		return newFailure(exitNotFound, "not_found", strings.TrimSpace(string(body)), "")
	default:
		return newFailure(exitUnavailable, "unavailable", fmt.Sprintf("the node answers %d: %s", res.StatusCode, strings.TrimSpace(string(body))), "")
	}
	if err := json.Unmarshal(body, v); err != nil {
		return newFailure(exitFailed, "bad_answer", "what answers at "+strings.TrimPrefix(base, "http://")+" has no such page", "")
	}
	return nil
}
