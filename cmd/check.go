package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/pkg/obs"
)

// Exit statuses of checks, as monitoring systems expect them.
const checkCritical = 2

func newCheck(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "check",
		Short: "Probes for monitoring: exit 0 if good, 2 if not",
	}
	c.AddCommand(newCheckReady(a))
	return c
}

func newCheckReady(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "ready",
		Short: "Ask a node whether it is ready",
		Long: `Ready asks /readyz of the node's ops listener.

Exit status: 0 if the node is ready (also if something is away that it can do
without), 2 if it is not or does not answer.`,
		Example: "  imd check ready\n  imd check ready --server http://127.0.0.1:8421",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		rep, why := askReady(ctx, f)
		text := rep.Status
		if why != "" {
			text = why
		}
		for _, ch := range rep.Checks {
			if ch.Reason != "" {
				text += fmt.Sprintf("; %s: %s", ch.Name, ch.Reason)
			}
		}
		good := rep.Status == obs.StatusReady || rep.Status == obs.StatusDegraded
		err := a.printer().data(rep, func(w io.Writer) {
			word := "CRITICAL"
			if good {
				word = "OK"
			}
			fmt.Fprintf(w, "%s - %s\n", word, text)
		})
		if err != nil || good {
			return err
		}
		return &failure{Exit: checkCritical, Code: "unready", Reason: "unready", Message: text, Retryable: true, quiet: true}
	}
	return c
}

// askReady reads a node's /readyz; why says what went wrong instead.
func askReady(ctx context.Context, f *serverFlags) (rep obs.Report, why string) {
	rep.Status = obs.StatusUnready
	base, err := f.base(opsURL)
	if err != nil {
		return rep, err.Error()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/readyz?verbose", nil)
	if err != nil {
		return rep, err.Error()
	}
	res, err := (&http.Client{Transport: transport()}).Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return rep, "no answer in time"
	}
	if err != nil {
		return rep, "the node does not answer: " + cause(err)
	}
	defer res.Body.Close()
	var got obs.Report
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&got); err != nil || got.Status == "" {
		return rep, "what answers at " + strings.TrimPrefix(base, "http://") + " is no ops listener of imd"
	}
	return got, ""
}
