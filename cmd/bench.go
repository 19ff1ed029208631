package cmd

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// benchFlags are what a load test can be told.
type benchFlags struct {
	*serverFlags
	conns, outstanding, size int
	rate                     float64
	duration, warmup         time.Duration
	seed                     uint64
	encoding, prefix         string
	sources                  []string
}

func newBench(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a server and measure it",
		Long: `Bench plays many devices at once against a running server and prints what it
measured: rates, latencies, and the server's processor time for each operation if
the server runs on this machine. Its own share of the processor time is printed
too; above 0.40 the figures say more about bench than about the server.

With --rate the load is open: each message has a time at which it should leave,
and latencies count from that time, however late the server made us. Without it,
each sender keeps --outstanding messages unanswered.

Bench switches the server's rate limits off while it runs, and says so.`,
		Example: "  imd bench send --conns 400 --outstanding 8 --duration 30s\n  imd bench connect --conns 10000\n  imd bench fanout --conns 1000 --rate 50 -o json",
	}
	for _, name := range slices.Sorted(maps.Keys(bench.Scenarios)) {
		c.AddCommand(newBenchScenario(a, name))
	}
	return c
}

func newBenchScenario(a *app, name string) *cobra.Command {
	text := bench.Scenarios[name]
	c := &cobra.Command{
		Use:   name,
		Short: strings.ToUpper(text[:1]) + text[1:],
		Args:  cobra.NoArgs,
	}
	f := &benchFlags{serverFlags: addServer(a, c, "public listener")}
	c.Flags().IntVar(&f.conns, "conns", 100, "devices in all")
	c.Flags().IntVar(&f.outstanding, "outstanding", 1, "unanswered messages each sender keeps, 1 to 32; without --rate")
	c.Flags().Float64Var(&f.rate, "rate", 0, "messages a second in all; 0 = as fast as answers come")
	c.Flags().DurationVar(&f.duration, "duration", 10*time.Second, "how long to measure")
	c.Flags().DurationVar(&f.warmup, "warmup", 2*time.Second, "how long to run before measuring")
	c.Flags().IntVar(&f.size, "size", 128, "bytes of text in each message, 16 to 16000")
	c.Flags().Uint64Var(&f.seed, "seed", 1, "for everything random")
	c.Flags().StringVar(&f.encoding, "encoding", "proto", "proto or json")
	c.Flags().StringVar(&f.prefix, "user-prefix", "", "beginning of user ids (default: new for each run)")
	c.Flags().StringSliceVar(&f.sources, "source-addrs", nil, "local addresses to connect from, in turn; one has about 28,000 ports")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return f.run(ctx, name)
	}
	return c
}

// options checks the flags and finds the server.
func (f *benchFlags) options(scenario string) (bench.Options, *credential, error) {
	o := bench.Options{Scenario: scenario, Conns: f.conns, Outstanding: f.outstanding, Rate: f.rate, Duration: f.duration,
		Warmup: f.warmup, Size: f.size, Seed: f.seed, Prefix: f.prefix, Processes: map[string]int{}}
	switch {
	case f.conns < 1 || f.conns > 1_000_000:
		return o, nil, usagef("--conns: %d is not within 1 and 1000000", f.conns)
	case f.outstanding < 1 || f.outstanding > protocol.ClientSendWindow:
		return o, nil, usagef("--outstanding: %d is not within 1 and %d", f.outstanding, protocol.ClientSendWindow)
	case f.size < 16 || f.size > 16_000:
		return o, nil, usagef("--size: %d is not within 16 and 16000", f.size)
	case f.rate < 0 || f.duration <= 0 || f.warmup < 0:
		return o, nil, usagef("--rate, --duration and --warmup cannot be negative")
	case f.encoding != "proto" && f.encoding != "json":
		return o, nil, usagef("--encoding: must be proto or json")
	}
	if f.encoding == "json" {
		o.Encoding = protocol.JSON
	}
	if o.Prefix == "" {
		o.Prefix = datadir.RandomID("b", 3) + "-"
	}
	for _, s := range f.sources {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return o, nil, usagef("--source-addrs: %v", err)
		}
		o.Sources = append(o.Sources, a)
	}
	cred, err := f.credential()
	if err != nil {
		return o, nil, err
	}
	if o.Address, err = addressOf(cred.base); err != nil {
		return o, nil, err
	}
	if p, err := f.local(); err == nil {
		o.Processes["imd"] = p.PID
	}
	return o, cred, nil
}

// local is the node of the data folder, if that is the server meant.
func (f *serverFlags) local() (datadir.Endpoints, error) {
	if f.server != "" {
		return datadir.Endpoints{}, fmt.Errorf("the server is named by URL")
	}
	_, p, err := f.app.endpoints(f.dataDir)
	return p, err
}

// addressOf resolves the host and port of a base URL. Bench speaks plain
// WebSocket only.
func addressOf(base string) (netip.AddrPort, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" {
		return netip.AddrPort{}, usagef("bench speaks plain http only, not %s", base)
	}
	a, err := net.ResolveTCPAddr("tcp", u.Host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), nil
}

func (f *benchFlags) run(ctx context.Context, scenario string) error {
	o, cred, err := f.options(scenario)
	if err != nil {
		return err
	}
	if err := raiseFiles(o.Conns + 100); err != nil {
		return err
	}
	o.Token = func(user string) (string, error) { return cred.token(ctx, user, newLogin()) }
	o.Group = func(ctx context.Context, owner string, members []string) (string, error) {
		return makeGroup(ctx, cred, owner, members)
	}
	restore, lifted := f.liftLimits(ctx)
	defer restore()
	if f.app.format == human {
		o.Progress = f.app.errOut
	}
	res, err := bench.Run(ctx, o)
	if err != nil {
		return err
	}
	res.LimitsOff, res.Client = lifted, obs.ThisBuild().Version
	if p, err := f.local(); err == nil {
		res.Server = p.Version
	}
	return f.app.printer().data(res, func(w io.Writer) { printBench(w, res) })
}

// raiseFiles makes room for n descriptors.
func raiseFiles(n int) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil || lim.Cur >= uint64(n) {
		return err
	}
	if lim.Max < uint64(n) {
		return newFailure(exitFailed, "file_limit", fmt.Sprintf("%d files are wanted, this process may have %d", n, lim.Max), "raise the limit: ulimit -n")
	}
	lim.Cur = lim.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
}

// liftLimits switches the server's rate limits off and gives what switches them
// on again. Without access to the ops listener they stay, and it says so.
func (f *benchFlags) liftLimits(ctx context.Context) (restore func(), lifted bool) {
	say := func(text string) { fmt.Fprintln(f.app.errOut, text) }
	client, err := f.admin()
	if err == nil {
		limits := adminv1connect.NewLimitServiceClient(client)
		call, cancel := f.app.bounded(ctx)
		_, err = limits.SetLimits(call, &adminv1.SetLimitsRequest{Off: true})
		cancel()
		if err == nil {
			say("rate limits are off while bench runs")
			return func() {
				call, cancel := f.app.bounded(context.WithoutCancel(ctx))
				defer cancel()
				if _, err := limits.SetLimits(call, &adminv1.SetLimitsRequest{}); err != nil {
					say("the rate limits could not be switched on again: " + err.Error())
				}
			}, true
		}
	}
	say("the server's rate limits hold: " + err.Error())
	return func() {}, false
}

// makeGroup makes a group of any size, 500 members a call.
func makeGroup(ctx context.Context, cred *credential, owner string, members []string) (string, error) {
	api, err := cred.conversations(ctx, owner)
	if err != nil {
		return "", err
	}
	first := members[:min(len(members), protocol.MaxAddMembers)]
	made, err := api.Create(ctx, &imdv1.CreateRequest{RequestId: uuid.NewString(), Name: "bench", UserIds: first})
	if err != nil {
		return "", err
	}
	for rest := range slices.Chunk(members[len(first):], protocol.MaxAddMembers) {
		if _, err := api.AddMembers(ctx, &imdv1.AddMembersRequest{ConversationId: made.ConversationId, RequestId: uuid.NewString(), UserIds: rest}); err != nil {
			return "", err
		}
	}
	return made.ConversationId, nil
}

func printBench(w io.Writer, r *bench.Result) {
	fmt.Fprintf(w, "%s: %d operations in %.1f s, %.0f/s", r.Scenario, r.Operations, r.Seconds, r.Achieved)
	if r.Offered > 0 {
		fmt.Fprintf(w, " of %.0f/s offered", r.Offered)
	}
	if r.Deliveries > 0 {
		fmt.Fprintf(w, ", %d deliveries", r.Deliveries)
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(r.Latency)) {
		l := r.Latency[name]
		row := []string{name, fmt.Sprint(l.Count)}
		for _, v := range []float64{l.P50, l.P90, l.P99, l.P999, l.Max} {
			row = append(row, fmt.Sprintf("%.2f", v))
		}
		rows = append(rows, row)
	}
	table(w, "MS COUNT P50 P90 P99 P99.9 MAX", rows)
	rows = nil
	for _, p := range r.Processes {
		row := []string{p.Name, fmt.Sprintf("%.2f", p.CPU), fmt.Sprintf("%.1f", p.PerOp), fmt.Sprintf("%.1f", float64(p.RSSBefore)/(1<<20)), fmt.Sprintf("%.1f", float64(p.RSSAfter)/(1<<20)), ""}
		if p.BytesPerCon > 0 {
			row[5] = fmt.Sprintf("%.0f", p.BytesPerCon)
		}
		rows = append(rows, row)
	}
	if len(rows) > 0 {
		table(w, "SERVER CPU_S US_EACH MIB_BEFORE MIB_AFTER BYTES_EACH", rows)
		fmt.Fprintf(w, "client: %.2f s of CPU, %.2f of client + server\n", r.ClientCPU, r.Share)
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(w, "errors: %s %d\n", reason, r.Errors[reason])
	}
}
