package presence

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

var waits = Waits{Offline: 500 * time.Millisecond, Return: 5 * time.Second}

// stage is a Core with a clock, and what its gateways heard.
type stage struct {
	t      *testing.T
	c      *Core
	now    time.Time
	heard  map[string][]string // by gateway
	saved  map[im.UserID]time.Time
	loads  []im.UserID
	turns  []string
	told   map[string]map[im.UserID]State
	events map[string]int // states told, by gateway and user
}

func newStage(t *testing.T, gateways ...string) *stage {
	s := &stage{t: t, c: New(waits), now: time.UnixMilli(1_000_000_000_000), heard: map[string][]string{}, saved: map[im.UserID]time.Time{},
		told: map[string]map[im.UserID]State{}, events: map[string]int{}}
	s.list(gateways...)
	for _, g := range gateways {
		s.step(Report{Home: at(g), First: true, Last: true})
	}
	return s
}

func at(g string) store.Home { return store.Home{Node: im.NodeID(g), Boot: "b"} }

func (s *stage) list(gateways ...string) {
	var list []Gateway
	for _, g := range gateways {
		list = append(list, Gateway{at(g), true})
	}
	s.step(Gateways{list})
}

func (s *stage) step(ev Event) {
	fx := s.c.Step(s.now, ev)
	for _, t := range fx.Tell {
		g := string(t.Home.Node)
		if s.told[g] == nil {
			s.told[g] = map[im.UserID]State{}
		}
		for _, x := range t.States {
			s.told[g][x.User] = x
			s.events[g+"/"+string(x.User)]++
			s.heard[g] = append(s.heard[g], fmt.Sprintf("%s%v", x.User, x.Online.Classes()))
		}
		for _, x := range t.Superseded {
			s.heard[g] = append(s.heard[g], "drop "+string(x))
		}
	}
	for _, x := range fx.Save {
		s.saved[x.User] = x.At
	}
	s.loads = append(s.loads, fx.Load...)
	for _, x := range fx.Turned {
		sign := "-"
		if x.Online {
			sign = "+"
		}
		s.turns = append(s.turns, sign+string(x.User))
	}
}

// turned compares who came and went for those outside since the last check, in any
// order.
func (s *stage) turned(want ...string) {
	s.t.Helper()
	slices.Sort(s.turns)
	if !slices.Equal(s.turns, want) {
		s.t.Errorf("turned: %q, want %q", s.turns, want)
	}
	s.turns = nil
}

// load answers what was asked of the store.
func (s *stage) load() {
	var list []Seen
	for _, u := range s.loads {
		list = append(list, Seen{u, s.saved[u]})
	}
	s.loads = nil
	if len(list) > 0 {
		s.step(Loaded{list})
	}
}

// pass lets time pass, tick by tick.
func (s *stage) pass(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(TickTime)
		s.load()
		s.step(Tick{})
	}
}

func (s *stage) report(g string, changes ...Change) { s.step(Report{Home: at(g), Changes: changes}) }

func (s *stage) check(g string, want ...string) {
	s.t.Helper()
	if got := s.heard[g]; !slices.Equal(got, want) {
		s.t.Errorf("%s heard %q, want %q", g, got, want)
	}
	s.heard[g] = nil
}

func sess(user, id string, epoch uint64, class im.Class) Session {
	return Session{User: im.UserID(user), ID: im.SessionID(id), Place: PlaceOf(im.LoginID("l-"+user), im.DeviceID(class)), Class: class, Epoch: epoch}
}

func began(user, id string, epoch uint64, class im.Class) Change {
	return Change{Kind: Began, Session: sess(user, id, epoch, class)}
}

func (s *stage) ended(user, id string, returns bool) Change {
	return Change{Kind: Ended, Session: Session{User: im.UserID(user), ID: im.SessionID(id)}, At: s.now, Returns: returns}
}

func watching(user string) Change {
	return Change{Kind: Watch, Session: Session{User: im.UserID(user)}}
}

func TestAWatcherHearsWhatIsAndThenEachChange(t *testing.T) {
	s := newStage(t, "g1", "g2")
	s.report("g1", watching("anna"))
	s.check("g1") // not before it is known when anna was last seen
	s.pass(TickTime)
	s.check("g1", "anna[]")
	s.report("g2", began("anna", "s1", 1, im.Phone))
	s.pass(TickTime)
	s.check("g1", "anna[phone]")
	s.check("g2")
	s.report("g1", watching("anna"))
	s.check("g1", "anna[phone]") // at once
	s.report("g2", began("anna", "s2", 2, im.Web))
	s.pass(TickTime)
	s.check("g1", "anna[phone web]")
	s.report("g2", s.ended("anna", "s1", false))
	s.pass(waits.Offline - TickTime)
	s.check("g1")
	s.pass(2 * TickTime)
	s.check("g1", "anna[web]")
	left := s.now
	s.report("g2", s.ended("anna", "s2", false))
	s.pass(time.Second)
	s.check("g1", "anna[]")
	if got := s.told["g1"]["anna"].LastSeen; !got.Equal(left) || !s.saved["anna"].Equal(left) {
		t.Errorf("last seen %v, saved %v, want %v", got, s.saved["anna"], left)
	}
	s.report("g1", Change{Kind: Unwatch, Session: Session{User: "anna"}})
	s.report("g2", began("anna", "s3", 3, im.Web))
	s.pass(time.Second)
	s.check("g1")
}

// A user who comes and goes twenty times in two seconds is two events.
func TestFlappingIsNotTold(t *testing.T) {
	for _, ends := range []bool{true, false} {
		s := newStage(t, "g1", "g2")
		s.report("g1", watching("anna"))
		s.pass(time.Second)
		s.events = map[string]int{}
		for i := range 20 {
			g, id := []string{"g1", "g2"}[i%2], fmt.Sprint("s", i)
			s.report(g, began("anna", id, uint64(i+1), im.Web))
			s.now = s.now.Add(50 * time.Millisecond)
			if i < 19 || ends {
				s.report(g, s.ended("anna", id, false))
			}
			s.pass(TickTime / 2)
		}
		s.pass(time.Second)
		if n := s.events["g1/anna"]; n > 2 || (s.told["g1"]["anna"].Online == 0) != ends {
			t.Errorf("%d events, the last %v", n, s.told["g1"]["anna"])
		}
	}
}

func TestWhoIsToldToComeBackHasTheTime(t *testing.T) {
	s := newStage(t, "g1")
	s.report("g1", watching("anna"), began("anna", "s1", 1, im.Web))
	s.pass(TickTime)
	s.check("g1", "anna[web]")
	s.report("g1", s.ended("anna", "s1", true))
	s.pass(waits.Return - time.Second)
	s.report("g1", began("anna", "s2", 2, im.Web))
	s.pass(time.Minute)
	s.check("g1")
}

func TestTheNewestSessionOfADeviceCounts(t *testing.T) {
	s := newStage(t, "g1", "g2", "g3")
	s.report("g3", watching("anna"))
	s.pass(TickTime)
	s.report("g1", began("anna", "s1", 5, im.Web))
	s.report("g2", began("anna", "s2", 9, im.Web))
	s.check("g1", "drop s1")
	s.report("g2", s.ended("anna", "s2", false))
	s.pass(time.Second)
	s.check("g3", "anna[]", "anna[web]", "anna[]")
	// g1 was cut off, and says now what it has.
	s.step(Report{Home: at("g1"), First: true, Last: true, Changes: []Change{began("anna", "s1", 5, im.Web)}})
	s.pass(time.Second)
	s.check("g1", "drop s1")
	s.check("g3")
	// Without a route nothing is older or newer.
	s.report("g1", began("anna", "s3", 0, im.Web))
	s.report("g2", began("anna", "s4", 10, im.Web))
	s.check("g1")
	s.report("g1", began("anna", "s3", 7, im.Web))
	s.check("g1", "drop s3")
	s.pass(TickTime)
	s.check("g3", "anna[web]")
}

// A new leader calls nobody offline before all gateways have reported, or ten
// seconds are over.
func TestANewLeaderWaitsForAllGateways(t *testing.T) {
	for _, late := range []bool{true, false} {
		s := &stage{t: t, c: New(waits), now: time.UnixMilli(1_000_000_000_000), heard: map[string][]string{}, saved: map[im.UserID]time.Time{},
			told: map[string]map[im.UserID]State{}, events: map[string]int{}}
		s.list("g1", "g2")
		s.step(Report{Home: at("g1"), First: true, Changes: []Change{watching("anna"), watching("bob"), watching("carl")}})
		s.step(Report{Home: at("g1"), Last: true, Changes: []Change{began("carl", "s1", 1, im.Web)}})
		s.pass(time.Second)
		s.check("g1", "carl[web]")
		s.report("g1", s.ended("carl", "s1", false))
		s.pass(5 * time.Second)
		s.check("g1")
		if late {
			s.step(Report{Home: at("g2"), First: true, Last: true, Changes: []Change{began("anna", "s2", 1, im.Phone)}})
			s.pass(time.Second)
			s.check("g1", "anna[phone]", "carl[]", "bob[]")
			continue
		}
		s.pass(GatherLimit)
		s.check("g1", "carl[]", "anna[]", "bob[]")
	}
}

func TestAGatewayTakesItsSessionsWithIt(t *testing.T) {
	s := newStage(t, "g1", "g2")
	s.report("g1", watching("anna"), watching("bob"))
	s.report("g2", began("anna", "s1", 1, im.Web), watching("bob"))
	s.pass(time.Second)
	s.heard = map[string][]string{}
	s.list("g1")
	s.pass(TickTime)
	s.check("g1", "anna[]")
	s.report("g1", began("bob", "s2", 1, im.Web))
	s.pass(TickTime)
	s.check("g1", "bob[web]")
	s.check("g2")
	s.report("g2", began("bob", "s3", 1, im.Phone)) // too late
	s.pass(TickTime)
	s.check("g1")
}

// An end of which no leader has heard still says when its user was last there.
func TestAnEndBeforeTheSnapshot(t *testing.T) {
	s := newStage(t, "g1")
	left := s.now.Add(-time.Second)
	s.step(Report{Home: at("g1"), First: true, Last: true, Changes: []Change{
		{Kind: Ended, Session: Session{User: "anna", ID: "s1"}, At: left},
		{Kind: Ended, Session: Session{User: "bob", ID: "s2"}, At: left}, watching("anna")}})
	s.pass(time.Second)
	s.check("g1", "anna[]")
	if got := s.told["g1"]["anna"].LastSeen; !got.Equal(left) || !s.saved["bob"].Equal(left) {
		t.Errorf("anna was seen %v, bob %v, want %v", got, s.saved["bob"], left)
	}
	if s.c.users["bob"] != nil {
		t.Error("bob is not forgotten")
	}
}

// What is of no use to anybody is forgotten.
func TestNothingIsLeft(t *testing.T) {
	s := newStage(t, "g1")
	for i := range 100 {
		u := fmt.Sprint("u", i)
		s.report("g1", began(u, "s"+u, 1, im.Web), watching(u))
	}
	s.pass(time.Second)
	for i := range 100 {
		u := fmt.Sprint("u", i)
		s.report("g1", s.ended(u, "s"+u, i%2 == 0), Change{Kind: Unwatch, Session: Session{User: im.UserID(u)}})
	}
	s.pass(tombTime + waits.Return + time.Second)
	if len(s.c.users) != 0 || s.c.due.Len() != 0 || s.c.live != 0 {
		t.Errorf("%d users, %d alarms and %d sessions are left", len(s.c.users), s.c.due.Len(), s.c.live)
	}
}

// TestModel plays random lives of gateways, sessions, watchers and leaders, and
// compares what every gateway was told in the end with what is.
func TestModel(t *testing.T) {
	for seed := range uint64(60) {
		m := &model{r: rand.New(rand.NewPCG(seed, 7)), stage: newStage(t), gateways: map[string]*modelGateway{}, outside: map[im.UserID]bool{}}
		m.believe()
		for range 3 {
			m.newGateway()
		}
		for range 400 {
			m.act()
		}
		m.calm()
		m.judge(seed)
		m.judgeOutside(seed)
		if t.Failed() {
			return
		}
	}
}

type modelGateway struct {
	sessions map[im.SessionID]Session
	watched  map[im.UserID]bool
	log      []Change // not reported yet
}

type model struct {
	*stage
	r        *rand.Rand
	gateways map[string]*modelGateway
	names    int
	epoch    uint64
	ids      int
	outside  map[im.UserID]bool // who is online, for those outside
}

func (m *model) newGateway() {
	m.names++
	m.gateways[fmt.Sprint("g", m.names)] = &modelGateway{sessions: map[im.SessionID]Session{}, watched: map[im.UserID]bool{}}
	m.register()
}

func (m *model) register() { m.list(slices.Sorted(maps.Keys(m.gateways))...) }

func (m *model) any() (string, *modelGateway) {
	names := slices.Sorted(maps.Keys(m.gateways))
	n := names[m.r.IntN(len(names))]
	return n, m.gateways[n]
}

func (m *model) someone() string { return fmt.Sprint("u", m.r.IntN(4)) }

func (m *model) act() {
	name, g := m.any()
	switch k := m.r.IntN(100); {
	case k < 30:
		m.begin(g)
	case k < 50:
		for _, id := range slices.Sorted(maps.Keys(g.sessions)) {
			g.log = append(g.log, Change{Kind: Ended, Session: g.sessions[id], At: m.now, Returns: m.r.IntN(3) == 0})
			delete(g.sessions, id)
			break
		}
	case k < 60:
		u := m.someone()
		kind := Watch
		if g.watched[im.UserID(u)] {
			kind = Unwatch
			delete(g.watched, im.UserID(u))
		} else {
			g.watched[im.UserID(u)] = true
		}
		g.log = append(g.log, Change{Kind: kind, Session: Session{User: im.UserID(u)}})
	case k < 80:
		m.flush(name, g)
	case k < 84:
		m.snapshot(name, g)
	case k < 86 && len(m.gateways) > 1: // it is killed
		delete(m.gateways, name)
		delete(m.told, name)
		m.register()
	case k < 88:
		m.newGateway()
	case k < 90: // another leader
		m.hearTurns()
		m.c = New(waits)
		m.believe()
		m.register()
	default:
		m.pass(time.Duration(m.r.IntN(8)) * TickTime)
	}
}

// begin begins a session, which ends those of its login and device elsewhere,
// sometimes without their gateways hearing of it.
func (m *model) begin(g *modelGateway) {
	m.epoch++
	m.ids++
	class := im.Classes()[m.r.IntN(3)]
	s := sess(m.someone(), fmt.Sprint("s", m.ids), m.epoch, class)
	for _, n := range slices.Sorted(maps.Keys(m.gateways)) {
		o := m.gateways[n]
		for _, id := range slices.Sorted(maps.Keys(o.sessions)) {
			if x := o.sessions[id]; x.Place == s.Place && x.User == s.User && m.r.IntN(2) == 0 {
				o.log = append(o.log, Change{Kind: Ended, Session: x, At: m.now})
				delete(o.sessions, id)
			}
		}
	}
	g.sessions[s.ID] = s
	g.log = append(g.log, Change{Kind: Began, Session: s})
}

func (m *model) flush(name string, g *modelGateway) {
	m.report(name, g.log...)
	g.log = nil
	m.dropped()
}

// dropped ends the sessions that the leader says are superseded.
func (m *model) dropped() {
	for _, n := range slices.Sorted(maps.Keys(m.gateways)) {
		g := m.gateways[n]
		for _, h := range m.heard[n] {
			var id im.SessionID
			if _, err := fmt.Sscanf(h, "drop %s", &id); err == nil {
				if s, ok := g.sessions[id]; ok {
					g.log = append(g.log, Change{Kind: Ended, Session: s, At: m.now})
					delete(g.sessions, id)
				}
			}
		}
		m.heard[n] = nil
	}
}

// snapshot reports all in pages; what is in the log comes again behind it.
func (m *model) snapshot(name string, g *modelGateway) {
	var all []Change
	for _, id := range slices.Sorted(maps.Keys(g.sessions)) {
		all = append(all, Change{Kind: Began, Session: g.sessions[id]})
	}
	for _, u := range slices.Sorted(maps.Keys(g.watched)) {
		all = append(all, Change{Kind: Watch, Session: Session{User: u}})
	}
	half := len(all) / 2
	m.step(Report{Home: at(name), First: true, Changes: all[:half]})
	m.step(Report{Home: at(name), Last: true, Changes: all[half:]})
	if m.r.IntN(2) == 0 {
		g.log = nil
	}
	m.dropped()
}

// calm lets everything arrive.
func (m *model) calm() {
	for range 3 {
		for _, n := range slices.Sorted(maps.Keys(m.gateways)) {
			m.snapshot(n, m.gateways[n])
			m.gateways[n].log = nil
		}
		m.pass(waits.Return + time.Second)
	}
	m.pass(GatherLimit)
}

// believe tells a new leader what those outside believe.
func (m *model) believe() {
	m.step(Told{First: true, Last: true, Users: slices.Sorted(maps.Keys(m.outside))})
}

// hearTurns tells those outside. Each turn changes what they believe.
func (m *model) hearTurns() {
	for _, turn := range m.turns {
		u, there := im.UserID(turn[1:]), turn[0] == '+'
		if m.outside[u] == there {
			m.t.Errorf("%s is told twice", turn)
		}
		m.outside[u] = there
		if !there {
			delete(m.outside, u)
		}
	}
	m.turns = nil
}

func (m *model) judgeOutside(seed uint64) {
	m.hearTurns()
	online := map[im.UserID]bool{}
	for _, g := range m.gateways {
		for _, s := range g.sessions {
			online[s.User] = true
		}
	}
	if !maps.Equal(online, m.outside) {
		m.t.Errorf("seed %d: outside it is believed that %v are online, and %v are", seed, m.outside, online)
	}
}

func (m *model) judge(seed uint64) {
	truth, newest := map[im.UserID]Mask{}, map[string]uint64{}
	for _, g := range m.gateways {
		for _, s := range g.sessions {
			truth[s.User] |= MaskOf(s.Class)
			k := fmt.Sprint(s.User, s.Place)
			if newest[k] != 0 {
				m.t.Errorf("seed %d: two sessions of one device of %s are left", seed, s.User)
			}
			newest[k] = s.Epoch
		}
	}
	for n, g := range m.gateways {
		for u := range g.watched {
			if got := m.told[n][u]; got.Online != truth[u] || got.User == "" {
				m.t.Errorf("seed %d: %s believes of %s %v, it is %v", seed, n, u, got.Online.Classes(), truth[u].Classes())
			}
		}
	}
}

func BenchmarkTransitions(b *testing.B) {
	c := New(waits)
	now := time.UnixMilli(1_000_000_000_000)
	c.Step(now, Gateways{[]Gateway{{at("g1"), true}}})
	c.Step(now, Report{Home: at("g1"), First: true, Last: true})
	const users = 100_000
	ids := make([]string, users)
	for i := range ids {
		ids[i] = fmt.Sprint("user", i)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		u := ids[i%users]
		kind := Change{Kind: Began, Session: sess(u, u, uint64(i+1), im.Web)}
		if (i/users)%2 == 1 {
			kind = Change{Kind: Ended, Session: Session{User: im.UserID(u), ID: im.SessionID(u)}, At: now}
		}
		c.Step(now, Report{Home: at("g1"), Changes: []Change{kind}})
		if i%500 == 0 {
			now = now.Add(TickTime)
			c.Step(now, Tick{})
		}
	}
}
