package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/synthetic"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// benchFlags are what a load test can be told.
type benchFlags struct {
	*serverFlags
	o                            bench.Options
	opsServer, opsTokenFile      string
	encoding, mix, record        string
	allocator                    string // of the server, for the judge of a history
	report                       string
	sources, gateways, processes []string
	verify, loaded               bool
	node                         string // drain: to be told to stop
	inPairs                      bool   // for overhead, which records by itself
}

func newBench(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Put load on a server and measure it",
		Long: `Bench plays many devices at once against a running server and prints what it
measured: rates, latencies, and the server's processor time for each operation if
the server runs on this machine. Its own share of the processor time is printed
too; above 0.40 the figures say more about bench than about the server.

With --rate the load is open: each operation has a time at which it should begin,
and latencies count from that time, however late the server made us. Without it,
each device keeps --outstanding operations unanswered.

Bench switches the server's rate limits off while it runs, and says so.`,
		Example: `  imd bench send --conns 400 --outstanding 8 --duration 30s
  imd bench mix --conns 300 --rate 500 --record ./run --verify
  imd bench resume --conns 5000 --no-backoff
  imd bench fanout --conns 1000 --rate 50 -o json > a.json
  imd bench compare a.json b.json`,
	}
	scenarios := bench.Scenarios()
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		c.AddCommand(newBenchScenario(a, name, scenarios[name]))
	}
	c.AddCommand(newBenchCompare(a), newBenchOverhead(a), newBenchLoad(a))
	return c
}

func newBenchScenario(a *app, name, text string) *cobra.Command {
	c := &cobra.Command{
		Use:   name,
		Short: strings.ToUpper(text[:1]) + text[1:],
		Args:  cobra.NoArgs,
	}
	f := &benchFlags{serverFlags: addServer(a, c, "public listener")}
	f.o.Scenario = name
	f.addLoad(c)
	f.addServerSide(c)
	c.Flags().StringVar(&f.report, "report", "", "write a report with plots to this HTML file")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, release := untilSignal(c.Context(), func(os.Signal) {})
		defer release()
		return f.run(ctx)
	}
	return c
}

// addLoad adds the flags that say what to do; some only where they count.
func (f *benchFlags) addLoad(c *cobra.Command) {
	o, fl := &f.o, c.Flags()
	in := func(names ...string) bool { return slices.Contains(names, o.Scenario) }
	fl.IntVar(&o.Conns, "conns", 100, "devices in all")
	if !in("drain", "hot", "slow", "presence") {
		fl.IntVar(&o.Users, "users", 0, "users they belong to (default: each device to one of its own)")
	}
	howLong := "how long to measure"
	if in("drain") {
		howLong = "how long to measure at least; it ends when all devices have moved"
	}
	fl.DurationVar(&o.Duration, "duration", 10*time.Second, howLong)
	fl.Uint64Var(&o.Seed, "seed", 1, "for everything random")
	fl.StringVar(&f.encoding, "encoding", "proto", "proto or json")
	fl.StringVar(&o.Prefix, "user-prefix", "", "beginning of user ids (default: new for each run)")
	fl.StringSliceVar(&f.sources, "source-addrs", nil, "local addresses to connect from, in turn; one has about 28,000 ports")
	fl.StringSliceVar(&f.gateways, "gateway", nil, "host:port of gateways to connect to, in turn (default: the server)")
	o.Outstanding, o.Size = 1, 128
	switch {
	case in("drain"):
		fl.StringVar(&f.node, "node", "", "id of the node that is told to stop; the first --gateway is its")
		fl.IntVar(&o.Others, "others", 10, "of the devices, those that are at the other gateways from the beginning")
		fl.Float64Var(&o.Rate, "rate", 500, "messages a second of all devices together")
	case in("slow"):
		fl.IntVar(&o.Pairs, "pairs", 5, "stretches with and without a client that does not read, each of --duration")
		fl.Float64Var(&o.Rate, "rate", 2000, "messages a second of all pairs of devices together")
	case in("presence"):
		fl.IntVar(&o.Flaps, "flaps", 20, "how often the user who is watched comes and goes in a round, 1 to 1000")
		fl.DurationVar(&o.Within, "within", 2*time.Second, "the time for that")
	case in("hot"):
		fl.IntVar(&o.Outstanding, "outstanding", 8, "unanswered messages that each sender into the hot conversation keeps, 1 to 32")
		fl.Float64Var(&o.Rate, "rate", 500, "messages a second into the other conversations in all")
		fl.IntVar(&o.Senders, "senders", 50, "of the devices, those that write into the hot conversation; all others are pairs")
	case !in("connect", "resume"):
		fl.IntVar(&o.Outstanding, "outstanding", 1, "unanswered operations each device keeps, 1 to 32; without --rate")
		fl.Float64Var(&o.Rate, "rate", 0, "operations a second in all; 0 = as fast as answers come")
	}
	if !in("connect", "resume", "presence") {
		fl.DurationVar(&o.Warmup, "warmup", 2*time.Second, "how long to run before measuring")
	}
	if !in("connect", "presence") {
		fl.IntVar(&o.Size, "size", 128, "bytes of text in each message, 16 to 16000")
	}
	if !in("connect", "repeat", "presence") && !f.inPairs {
		fl.StringVar(&f.record, "record", "", "new folder for a history of all that is sent, answered and shown")
		fl.BoolVar(&f.verify, "verify", false, "judge the history afterwards; with --record")
		fl.StringVar(&f.allocator, "allocator", store.Transaction, "seq.allocator of the server, by which the history is judged: transaction or segment; with --record")
	}
	if !in("connect", "drain", "resume", "presence") {
		fl.BoolVar(&o.Reconnect, "reconnect", false, "let devices that lose their connection come back and send again what was not answered")
	}
	fl.DurationVar(&o.Settle, "settle", 0, "longest wait afterwards for what is on its way (default 5s, 40s with --record)")
	if !in("connect", "presence") {
		fl.BoolVar(&o.AtOnce, "no-backoff", false, "let devices come back without a pause")
	}
	if in("sync", "resume") {
		fl.IntVar(&o.Conversations, "conversations", 20, "conversations of each user")
	}
	if in("connect") {
		fl.IntVar(&o.Conversations, "conversations", 0, "groups of 20 that each user is in before it connects")
	}
	if in("fanout") {
		fl.IntVar(&o.Members, "members", 0, "members of the group, of whom those beyond --users never connect (default: no others)")
		fl.BoolVar(&o.Whole, "whole", false, "send the next message when all members have the last one")
	}
	if in("history") {
		fl.IntVar(&o.Entries, "entries", 200, "entries of each conversation")
	}
	if in("history", "sync") {
		fl.StringVar(&o.Reader, "reader", "", "user that exists, who reads what is there in place of what bench writes")
		fl.BoolVar(&f.loaded, "loaded", false, "read what bench load has made: --reader is its busy user and --conversation its group")
	}
	if in("history") {
		fl.StringVar(&o.Conversation, "conversation", "", "with --reader: the conversation to read")
	}
	if in("sync") {
		fl.IntVar(&o.Changed, "changed", 50, "with --reader: direct conversations that get a message before each sync")
	}
	if in("history", "mix") {
		fl.IntVar(&o.Page, "page", 50, "entries of a page, 1 to 500")
	}
	o.GroupSize = 20
	if in("mix") {
		fl.IntVar(&o.GroupSize, "group-size", 10, "members of a group, 2 to 500")
		fl.StringVar(&f.mix, "mix", "", "shares of the operations (default direct=50,group=20,read=15,history=10,sync=5)")
	}
}

// addServerSide adds the flags that say what else of the server is to be used.
func (f *benchFlags) addServerSide(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.opsServer, "ops-server", "", "URL of the ops listener, to lift the rate limits (default: the node of the data folder)")
	fl.StringVar(&f.opsTokenFile, "ops-token-file", "", "file with the admin key for --ops-server (default: the key of the data folder)")
	fl.StringSliceVar(&f.processes, "process", nil, "server processes to measure beside the node of the data folder, each with its children, as name=pid or, for what listens there, name=:port")
}

// check refuses what makes no sense.
func (f *benchFlags) check() error {
	o := &f.o
	switch {
	case o.Conns < 1 || o.Conns > 1_000_000:
		return usagef("--conns: %d is not within 1 and 1000000", o.Conns)
	case o.Users < 0 || o.Users > o.Conns:
		return usagef("--users: %d is not within 1 and the %d of --conns", o.Users, o.Conns)
	case o.Outstanding < 1 || o.Outstanding > protocol.ClientSendWindow:
		return usagef("--outstanding: %d is not within 1 and %d", o.Outstanding, protocol.ClientSendWindow)
	case o.Size < 16 || o.Size > 16_000:
		return usagef("--size: %d is not within 16 and 16000", o.Size)
	case o.Rate < 0 || o.Duration <= 0 || o.Warmup < 0 || o.Settle < 0:
		return usagef("--rate, --warmup and --settle cannot be negative, and --duration is above 0")
	case f.encoding != "proto" && f.encoding != "json":
		return usagef("--encoding: must be proto or json")
	case f.record != "" && f.allocator != store.Transaction && f.allocator != store.Segment:
		return usagef("--allocator %q is neither transaction nor segment", f.allocator)
	case f.verify && f.record == "":
		return usagef("--verify wants --record")
	case o.Conversations < 0 || o.Conversations > 1000:
		return usagef("--conversations: %d is not within 1 and 1000", o.Conversations)
	case o.Entries < 0 || o.Entries > 100_000:
		return usagef("--entries: %d is not within 1 and 100000", o.Entries)
	case o.Page < 0 || o.Page > protocol.MaxHistoryLimit:
		return usagef("--page: %d is not within 1 and %d", o.Page, protocol.MaxHistoryLimit)
	case o.Whole && (o.Rate != 0 || o.Outstanding != 1):
		return usagef("--whole sends one message after the other, without --rate and --outstanding")
	case o.Scenario == "hot" && (o.Senders < 2 || o.Conns-o.Senders < 2 || o.Rate == 0):
		return usagef("hot wants a rate, at least 2 senders and at least 2 of --conns beside them")
	case o.Scenario == "drain" && (f.node == "" || len(f.gateways) < 2):
		return usagef("drain wants the id of a --node, and at least two of --gateway, its own first")
	case o.Scenario == "drain" && (o.Rate == 0 || o.Others < 0 || o.Conns-o.Others < 1 || o.Conns < 2):
		return usagef("drain wants a rate, and at least 2 of --conns, not all of which are --others")
	case o.Scenario == "slow" && (o.Conns < 4 || o.Rate == 0 || o.Pairs < 1 || o.Pairs > 1000):
		return usagef("slow wants a rate, at least 4 of --conns and 1 to 1000 pairs of stretches")
	case o.Scenario == "presence" && (o.Conns < 2 || o.Flaps < 1 || o.Flaps > 1000 || o.Within <= 0):
		return usagef("presence wants at least 2 of --conns, 1 to 1000 flaps and a time for them")
	case o.Scenario == "mix" && (o.GroupSize < 2 || o.GroupSize > 500):
		return usagef("--group-size: %d is not within 2 and 500", o.GroupSize)
	}
	if err := f.checkReader(); err != nil {
		return err
	}
	var err error
	o.Mix, err = parseMix(f.mix)
	return err
}

// checkReader refuses half of what reading a store that is there wants.
func (f *benchFlags) checkReader() error {
	o := &f.o
	if f.loaded {
		if o.Reader != "" || o.Conversation != "" {
			return usagef("--loaded is a reader and a conversation: it goes without --reader and --conversation")
		}
		o.Reader = string(synthetic.User(0))
		if o.Scenario == "history" {
			o.Conversation = string(synthetic.Group)
		}
	}
	switch {
	case o.Scenario == "history" && (o.Reader == "") != (o.Conversation == ""):
		return usagef("--reader and --conversation go together")
	case o.Reader != "" && (f.record != "" || o.Users != 0):
		return usagef("--reader goes without --record and --users")
	case o.Scenario == "sync" && o.Reader != "" && (o.Changed < 1 || o.Changed > 1000):
		return usagef("--changed: %d is not within 1 and 1000", o.Changed)
	case o.Scenario == "sync" && o.Reader != "" && (o.Rate != 0 || o.Outstanding != 1):
		return usagef("--reader makes one sync after the other, without --rate and --outstanding")
	}
	return nil
}

// parseMix reads shares like direct=60,sync=40.
func parseMix(s string) (m bench.Mix, err error) {
	if s == "" {
		return bench.DefaultMix, nil
	}
	fields := map[string]*int{"direct": &m.Direct, "group": &m.Group, "read": &m.Read, "history": &m.History, "sync": &m.Sync}
	sum := 0
	for part := range strings.SplitSeq(s, ",") {
		name, v, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(v)
		if fields[name] == nil || err != nil || n < 0 || n > 1000 {
			return m, usagef("--mix: %q is not one of direct, group, read, history and sync with a number from 0 to 1000", part)
		}
		*fields[name] = n
		sum += n
	}
	if sum == 0 {
		return m, usagef("--mix: all shares are 0")
	}
	return m, nil
}

// target finds the server and what is to be measured of it.
func (f *benchFlags) target() (*credential, error) {
	o := &f.o
	if f.encoding == "json" {
		o.Encoding = protocol.JSON
	}
	if o.Prefix == "" {
		o.Prefix = datadir.RandomID("b", 3) + "-"
	}
	for _, s := range f.sources {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, usagef("--source-addrs: %v", err)
		}
		o.Sources = append(o.Sources, a)
	}
	var err error
	if o.Processes, err = parseProcesses(f.processes); err != nil {
		return nil, err
	}
	cred, err := f.credential()
	if err != nil {
		return nil, err
	}
	if cred.ring == nil && !auth.IsAPIKey(cred.bearer) {
		return nil, newFailure(exitNotAllowed, "no_key", "bench is many users and needs the keys of a data folder or an API key", "name a file with an API key with --token-file")
	}
	gateways := f.gateways
	if len(gateways) == 0 {
		gateways = []string{cred.base}
	}
	for _, g := range gateways {
		if !strings.Contains(g, "://") {
			g = "http://" + g
		}
		a, err := addressOf(g)
		if err != nil {
			return nil, err
		}
		o.Addresses = append(o.Addresses, a)
	}
	if p, err := f.local(); err == nil && o.Processes["imd"] == 0 && !slices.Contains(slices.Collect(maps.Values(o.Processes)), p.PID) {
		o.Processes["imd"] = p.PID
	}
	return cred, nil
}

// parseProcesses reads processes like postgres=:5432 or gateway=1234: a port
// stands for the process that listens there.
func parseProcesses(named []string) (map[string]int, error) {
	all := map[string]int{}
	for _, s := range named {
		name, v, _ := strings.Cut(s, "=")
		text, port := strings.CutPrefix(v, ":")
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || name == "" || n == 0 || all[name] != 0 {
			return nil, usagef("--process: %q is not another name=pid or name=:port", s)
		}
		all[name] = int(n)
		if port {
			if all[name], err = bench.ListenerOn(int(n)); err != nil {
				return nil, usagef("--process: %s: %v", name, err)
			}
		}
	}
	return all, nil
}

// local is the node of the data folder, if that is the server meant.
func (f *serverFlags) local() (datadir.Endpoints, error) {
	if f.server != "" {
		return datadir.Endpoints{}, errors.New("the server is named by URL")
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

// prepare checks the flags and gets ready for a run. The caller closes what it
// returns.
func (f *benchFlags) prepare() (*benchSide, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	cred, err := f.target()
	if err != nil {
		return nil, err
	}
	if err := raiseFiles(f.o.Conns + 200); err != nil {
		return nil, err
	}
	side := &benchSide{f: f, cred: cred}
	f.o.Token = func(ctx context.Context, user string) (string, error) { return cred.token(ctx, user, newLogin()) }
	f.o.Group, f.o.Drain = side.group, side.drain
	return side, nil
}

func (f *benchFlags) run(ctx context.Context) error {
	side, err := f.prepare()
	if err != nil {
		return err
	}
	defer side.close(ctx)
	if f.record != "" {
		if f.o.Log, err = side.systemLog(ctx); err != nil {
			return err
		}
		if f.o.Record, err = history.NewRecorder(f.record); err != nil {
			return newFailure(exitFailed, "record", err.Error(), "")
		}
	}
	lifted := side.liftLimits(ctx)
	live := newLive(f.app)
	f.o.Progress = live.show
	res, ran := bench.Run(ctx, f.o)
	live.clear()
	if f.o.Record != nil {
		err := f.o.Record.Close(history.Run{Seed: f.o.Seed, Server: side.version(), Allocator: f.allocator})
		ran = errors.Join(ran, err)
	}
	if res == nil {
		return f.whyNot(ran)
	}
	res.LimitsOff, res.Client, res.Server, res.Recorded = lifted, obs.ThisBuild().Version, side.version(), f.record
	return f.tell(res, ran)
}

// whyNot is the failure of a run that measured nothing.
func (f *benchFlags) whyNot(err error) error {
	if errors.Is(err, unix.ECONNREFUSED) {
		return newFailure(exitUnavailable, "unreachable", err.Error(), "is it running? see imd check ready")
	}
	return err
}

// tell prints a result, writes the report and judges the history.
func (f *benchFlags) tell(res *bench.Result, ran error) error {
	err := f.app.printer().data(res, func(w io.Writer) { printBench(w, res) })
	if err == nil && f.report != "" {
		err = writeReport(f.report, res)
	}
	switch {
	case err != nil:
		return err
	case errors.Is(ran, context.Canceled):
		return ran
	case ran != nil:
		return newFailure(exitFailed, "ended_early", ran.Error(), "what was measured until then is printed")
	case f.verify:
		return f.judge()
	}
	return nil
}

// raiseFiles makes room for n descriptors.
func raiseFiles(n int) error {
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil || lim.Cur >= uint64(n) {
		return err
	}
	if lim.Max < uint64(n) {
		return newFailure(exitFailed, "file_limit", fmt.Sprintf("%d files are wanted, this process may have %d", n, lim.Max), "raise the limit, ulimit -n, or share the devices between several runs at once")
	}
	lim.Cur = lim.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
}
