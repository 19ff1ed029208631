package drill

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/faultproxy"
)

// breaker carries out faults on a running cluster.
type breaker struct {
	nodes []*node
	world *world

	plane   *plane       // nil = the layout has none
	db      *database    // nil = the layout has no Postgres
	cache   *cache       // nil = the layout has no Redis
	network *network     // nil = each node has all roles
	where   *whereabouts // nil = the routes are not in Redis
	hosts   *hosts       // nil = the nodes are on this one
	effects *effects     // nil = nobody looks at what leaders do
	pipes   bool         // how calls between nodes travel; else over HTTP
	crashed func(what string)
	caught  func(where string) // hears where a leader was hit
}

// fault is one event while it is carried out.
type fault struct {
	Event
	b   *breaker
	rng *rand.Rand
	n   *node // the one it hits
}

// fault makes a fault of an event and chooses what it hits.
func (b *breaker) fault(e Event) *fault {
	f := &fault{Event: e, b: b, rng: rand.New(rand.NewPCG(e.Seed, 1))}
	candidates := b.nodes
	switch all := traitOf(e.Kind).areas(); {
	case e.Kind == OwnerPause || e.Kind == RingChurn:
		candidates = havingRole(b.nodes, "state")
	case all[0] == peers || slices.Contains(all, links) || e.Kind == GatewayKill:
		candidates = gatesOf(b.nodes)
	case traitOf(e.Kind).leaders: // whoever leads then
		return f
	case all[0] == stores && e.Kind != PgPartition || all[0] == caches || all[0] == etcds || all[0] == receivers:
		return f // no node
	}
	f.n = candidates[f.rng.IntN(len(candidates))]
	return f
}

// carryOut carries out a fault, from its beginning until it is healed. When ctx
// ends it heals at once. An error means that the fault did not take place as
// it should.
func (f *fault) carryOut(ctx context.Context) error {
	run := map[Kind]func(*fault, context.Context) error{
		Kill: (*fault).kill, Pause: (*fault).pause, Restart: (*fault).restart, Disk: (*fault).disk, Stall: (*fault).stall,
		Clock: (*fault).clock, Point: (*fault).point, Reset: (*fault).reset, Refuse: (*fault).refuse,
		Delay: (*fault).link, Bytewise: (*fault).link, Bandwidth: (*fault).link, Drop: (*fault).swallow, Blackhole: (*fault).swallow,
		Slow: (*fault).slow, HalfOpen: (*fault).halfOpen, Hostile: (*fault).hostile, Storm: (*fault).storm, Files: (*fault).files, Block: (*fault).block, Groups: (*fault).groups, Members: (*fault).members,
		MemberKill: (*fault).memberKill, MemberPause: (*fault).memberPause, MemberPartition: (*fault).memberPartition, LeaderChange: (*fault).leaderChange,
		Compaction: (*fault).compaction, LeaseRevoke: (*fault).leaseRevoke, EtcdOutage: (*fault).etcdOutage, EtcdRestore: (*fault).etcdRestore,
		PgKill: (*fault).pgKill, PgStop: (*fault).pgStop, PgStall: (*fault).pgStall, PgTerminate: (*fault).pgTerminate,
		PgLock: (*fault).pgLock, PgPool: (*fault).pgPool, PgPartition: (*fault).pgPartition,
		RedisFlush: (*fault).redisFlush, RedisStall: (*fault).redisStall, RedisRestart: (*fault).redisRestart, RedisMix: (*fault).redisMix,
		RedisClock: (*fault).redisClock, KickRace: (*fault).kickRace, GatewayKill: (*fault).kill,
		RolePartition: (*fault).rolePartition, RoleBlackhole: (*fault).roleBlackhole, RoleSlow: (*fault).roleSlow,
		HostBlackhole: (*fault).hostBlackhole, RoleLie: (*fault).roleLie, DrainCut: (*fault).drainCut,
		RollingRestart: (*fault).rollingRestart, Drain: (*fault).drain, OwnerPause: (*fault).pause, RingChurn: (*fault).ringChurn,
		ReceiverHang: (*fault).receiver, ReceiverLie: (*fault).receiver, ReceiverTwice: (*fault).receiver,
		LeaderKill: (*fault).leaderKill, LeaderPause: (*fault).leaderPause, LeaderCut: (*fault).leaderCut,
		NodePause: (*fault).nodePause, NodeKill: (*fault).nodeKill, SettingsFlood: (*fault).settingsFlood,
	}[f.Kind]
	return run(f, ctx)
}

// gatesOf are the nodes that clients reach.
func gatesOf(nodes []*node) (all []*node) {
	for _, n := range nodes {
		if n.proxy != nil {
			all = append(all, n)
		}
	}
	return all
}

// havingRole are the nodes with the role, alone or beside others.
func havingRole(nodes []*node, role string) (all []*node) {
	for _, n := range nodes {
		if n.has(role) {
			all = append(all, n)
		}
	}
	return all
}

// has reports whether the node has the role, alone or beside others.
func (n *node) has(role string) bool {
	return n.spec.has(role)
}

// healing is a context for what must be done also when the drill is ending.
func healing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callsLimit)
}

func (f *fault) kill(ctx context.Context) error {
	f.n.kill()
	hold(ctx, f.For)
	return f.n.begin()
}

func (f *fault) pause(ctx context.Context) error {
	if err := f.n.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	hold(ctx, f.For)
	return f.n.signal(syscall.SIGCONT)
}

func (f *fault) restart(ctx context.Context) error {
	began := time.Now()
	f.b.stop(f.n, f.n.terminate)
	hold(ctx, f.For-time.Since(began))
	return f.n.begin()
}

// stop has a node stop. One that does not end as it should has crashed.
func (b *breaker) stop(n *node, ask func() error) {
	if err := n.endBy(ask); err != nil {
		b.crashed(err.Error())
	}
}

func (f *fault) disk(ctx context.Context) error {
	defer f.n.mayDie()()
	release, err := ballast(f.n.dir)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	hold(ctx, f.For)
	return release()
}

func (f *fault) stall(ctx context.Context) error {
	release, err := stall(f.n.dir)
	if err != nil {
		return err
	}
	hold(ctx, f.For)
	return release()
}

func (f *fault) clock(ctx context.Context) error {
	shift, err := time.ParseDuration(f.Level)
	if err != nil {
		return err
	}
	return f.rules(ctx, failpoint.Rules{Shift: shift})
}

func (f *fault) point(ctx context.Context) error {
	defer f.n.mayDie()()
	r, err := failpoint.Parse(f.Level)
	if err != nil {
		return err
	}
	return f.rules(ctx, r)
}

// rules puts fail points in force while the fault lasts.
func (f *fault) rules(ctx context.Context, r failpoint.Rules) error {
	if err := writeRules(f.n.rules, r.String()+f.n.standing); err != nil {
		return err
	}
	hold(ctx, f.For)
	return writeRules(f.n.rules, f.n.standing)
}

// writeRules replaces a file of rules in one step.
func writeRules(path, text string) error {
	next := path + ".new"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("rules in %s: %w", filepath.Dir(path), err)
	}
	return nil
}

func (f *fault) reset(context.Context) error {
	f.n.proxy.Reset()
	return nil
}

func (f *fault) refuse(ctx context.Context) error {
	f.n.proxy.Set(faultproxy.Mode{Refuse: true})
	f.n.proxy.Reset()
	hold(ctx, f.For)
	f.n.proxy.Set(faultproxy.Mode{})
	return nil
}

// link makes the way to a node bad, but loses nothing.
func (f *fault) link(ctx context.Context) error {
	var m faultproxy.Mode
	var err error
	switch f.Kind {
	case Delay:
		m.Delay, err = time.ParseDuration(f.Level)
	case Bandwidth:
		m.Bandwidth, err = strconv.Atoi(f.Level)
	case Bytewise:
		m.Bytewise = true
	}
	if err != nil {
		return err
	}
	f.n.proxy.Set(m)
	hold(ctx, f.For)
	f.n.proxy.Set(faultproxy.Mode{})
	return nil
}

// swallow loses what is said.
func (f *fault) swallow(ctx context.Context) error {
	f.mute(f.Kind == Blackhole)
	hold(ctx, f.For)
	f.unmute()
	return nil
}

// mute swallows what the node says, or what both sides say.
func (f *fault) mute(both bool) {
	f.n.proxy.Set(faultproxy.Mode{DropReplies: !both, Blackhole: both})
}

// unmute ends it. The streams have holes now, which TCP would never hand on, so
// they are cut.
func (f *fault) unmute() {
	f.n.proxy.Set(faultproxy.Mode{Refuse: true})
	f.n.proxy.Reset()
	f.n.proxy.Set(faultproxy.Mode{})
}

// Numbers of misbehaving peers.
const (
	slowPeers     = 10
	halfOpenPeers = 30
	hostilePeers  = 6 // at a time
)

// someone is a token of a user of the load.
func (f *fault) someone(ctx context.Context) (string, error) {
	users := f.b.world.people()
	if len(users) == 0 {
		return "", errors.New("the load has no users")
	}
	return f.b.world.token(ctx, users[f.rng.IntN(len(users))])
}

// slow lets further devices of users log in that read nothing. Some begin to
// read again at the end, the others vanish.
func (f *fault) slow(ctx context.Context) error {
	var all []*peer
	defer func() {
		for _, p := range all {
			p.Close()
		}
	}()
	for range slowPeers {
		token, err := f.someone(ctx)
		if err != nil {
			return err
		}
		if p, err := member(ctx, f.n.endpoints().Public, token); err == nil { // else the node is under another fault
			_ = p.Conn.(interface{ SetReadBuffer(int) error }).SetReadBuffer(4096)
			all = append(all, p)
		}
	}
	hold(ctx, f.For)
	for _, p := range all[:len(all)/2] {
		_ = p.SetReadDeadline(time.Now().Add(100 * ms))
		_, _ = p.in.WriteTo(discard{})
	}
	return nil
}

// discard throws away what it gets.
type discard struct{}

// Write takes everything.
func (discard) Write(b []byte) (int, error) { return len(b), nil }

// halfOpen makes connections whose peer says nothing more: before the request,
// inside of it, behind the upgrade, and logged in, half of them with the way to
// the node closed.
func (f *fault) halfOpen(ctx context.Context) error {
	var all []*peer
	defer func() {
		for _, p := range all {
			p.Close()
		}
	}()
	for i := range halfOpenPeers {
		token, err := f.someone(ctx)
		if err != nil {
			return err
		}
		p, err := reach(ctx, f.n.endpoints().Public)
		if err != nil {
			continue
		}
		all = append(all, p)
		switch i % 4 {
		case 1:
			_, _ = fmt.Fprint(p, "GET /v1/ws HTTP/1.1\r\nHost: dri")
		case 2:
			_ = p.upgrade()
		case 3:
			if p.upgrade() == nil {
				_ = p.login(token, "half-open")
			}
		}
		if f.rng.IntN(2) == 0 {
			_ = p.Conn.(interface{ CloseWrite() error }).CloseWrite()
		}
	}
	hold(ctx, f.For)
	return nil
}

// hostile lets peers break the rules, one after the other.
func (f *fault) hostile(ctx context.Context) error {
	token, err := f.someone(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	var wg sync.WaitGroup
	for range hostilePeers {
		rng := rand.New(rand.NewPCG(f.rng.Uint64(), 2))
		wg.Go(func() {
			for ctx.Err() == nil {
				misbehave(ctx, rng, f.n.endpoints().Public, token)
				hold(ctx, 20*ms)
			}
		})
	}
	wg.Wait()
	return nil
}

// lost is how long answers are lost before somebody's rights change, so that
// many messages are stored whose senders do not know it.
const lost = 700 * ms

// quiet is how long nothing else happens after rights were given back. A refusal
// whose answer is lost is no promise: the repeated send is a new one, and if it
// is taken then, it stands behind what was taken meanwhile. So refusals must
// have arrived before connections are cut again.
const quiet = 1200 * ms

// changeRights takes rights away while answers are lost, lets the devices come
// back and ask again, and gives the rights back.
func (f *fault) changeRights(ctx context.Context, take, give func(context.Context) error) error {
	f.mute(false)
	hold(ctx, lost)
	err := take(ctx)
	f.unmute()
	hold(ctx, f.For-lost-quiet)
	call, cancel := healing(ctx)
	defer cancel()
	err = errors.Join(err, give(call))
	hold(ctx, quiet)
	return err
}

// block lets users block a partner of theirs.
func (f *fault) block(ctx context.Context) error {
	users := f.b.world.people()
	var pairs [][2]string
	for i := 0; i+1 < len(users); i += 2 { // as mix pairs them
		pairs = append(pairs, [2]string{users[i], users[i+1]})
	}
	f.rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	pairs = pairs[:min(len(pairs), 6)]
	all := func(on bool) func(context.Context) error {
		return func(ctx context.Context) error {
			var errs []error
			for _, p := range pairs {
				errs = append(errs, f.b.world.block(ctx, p[0], p[1], on))
			}
			return errors.Join(errs...)
		}
	}
	return f.changeRights(ctx, all(true), all(false))
}

// members removes members of groups.
func (f *fault) members(ctx context.Context) error {
	chosen := f.b.world.someGroups(f.rng, 4)
	for i, g := range chosen {
		users := slices.Clone(g.members)
		f.rng.Shuffle(len(users), func(i, j int) { users[i], users[j] = users[j], users[i] })
		chosen[i].members = users[:min(len(users), 2)]
	}
	all := func(do func(context.Context, group, []string) error) func(context.Context) error {
		return func(ctx context.Context) error {
			var errs []error
			for _, g := range chosen {
				errs = append(errs, do(ctx, g, g.members))
			}
			return errors.Join(errs...)
		}
	}
	return f.changeRights(ctx, all(f.b.world.removeMembers), all(f.b.world.addMembers))
}

// kickRace lets logins of one user come at once.
func (f *fault) kickRace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	f.b.where.race(ctx, f.rng)
	return nil
}

// groups makes groups while all devices come back. It ends in its time, however
// slow the cluster is: what is written after the load has nobody who waits for it.
func (f *fault) groups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	f.n.proxy.Reset()
	var errs []error
	for range max(int(f.For/(100*ms)), 1) {
		err := f.b.world.post(ctx, f.rng, 8)
		if ctx.Err() != nil {
			break
		}
		errs = append(errs, err)
		hold(ctx, 50*ms)
	}
	return errors.Join(errs...)
}
