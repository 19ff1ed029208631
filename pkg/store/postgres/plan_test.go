package postgres

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// scan is a step of a plan that reads a whole table.
var scan = regexp.MustCompile(`Seq Scan on (entry|conversation|member|account|block|creation|api_key|seen|fence|worker|revocation|feed|event|receiver|dead_letter|push|mute|scheduled|announcement|user_online|session|job)\w*`)

// sorting is a step that sorts; merging what is sorted is none.
var sorting = regexp.MustCompile(`(?m)^\s*(->  )?(Incremental )?Sort$`)

// parameter is a place for a value.
var parameter = regexp.MustCompile(`\$(\d+)`)

// planned is a session as the store sets it up.
func planned(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	c := connectTo(t, dsn)
	if err := (limits{statement: time.Minute, lock: time.Minute}).apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	return c
}

// No query of a hot path reads a whole table or sorts what is in one: that
// would be fast in every test and slow with a year of messages.
func TestPlans(t *testing.T) {
	c := planned(t, fresh(t, testenv.SharedPostgres(t)))
	for name, query := range map[string]string{
		"stay": sqlStay, "log": sqlLog, "up": sqlUp, "down": sqlDn, "entry": sqlEntry, "stays": sqlStays, "seen": sqlSeen, "pages": sqlPages,
		"heads": sqlHeads, "group": sqlGroup, "members": sqlMembers, "positions": sqlPositions, "clear": sqlClear, "by key": sqlByKey,
		"creation": sqlCreation, "lock": sqlLock, "members of": sqlMembersOf, "owners": sqlOwners, "user": sqlUser, "users": sqlUsers,
		"revocations": sqlRevocations, "callers": sqlCallers, "heal": sqlHeal, "fence": sqlFence, "last seen": sqlSeenAt, "visible": sqlVisible, "events": sqlEvents, "online": sqlOnline, "events at": sqlEventsAt,
		"dead letters": sqlDeadLetters, "unacked": sqlUnacked, "due pushes": sqlDuePushes, "badge stays": sqlBadgeStays, "flush": sqlFlush,
		"scheduled of": sqlScheduledOf, "scheduled all": sqlScheduledAll, "scheduled one": sqlScheduledOne,
		"scheduled request": sqlScheduledRequest, "cancel scheduled": sqlCancelScheduled,
		"announcements": sqlAnnouncements, "announcement request": sqlAnnouncementRequest, "announcements live": sqlAnnouncementsLive,
		"announcements gone": sqlAnnouncementsGone,
	} {
		n := 0
		for _, m := range parameter.FindAllStringSubmatch(query, -1) {
			var i int
			fmt.Sscan(m[1], &i)
			n = max(n, i)
		}
		if _, err := c.Exec(t.Context(), "DEALLOCATE ALL; PREPARE p AS "+query); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		rows, err := c.Query(t.Context(), "EXPLAIN (COSTS OFF) EXECUTE p("+strings.TrimSuffix(strings.Repeat("NULL,", n), ",")+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		judge(t, name, strings.Join(lines, "\n"), name == "pages" || name == "members of" || name == "revocations" || name == "heal" || name == "unacked" || name == "events at" || name == "announcements live")
	}
}

// judge looks at one plan. sorts allows it to sort the few rows that it locks.
func judge(t *testing.T, name, plan string, sorts bool) {
	t.Helper()
	if scan.MatchString(plan) || !sorts && sorting.MatchString(plan) {
		t.Errorf("%s:\n%s", name, plan)
	}
}

// The same of what the functions run inside.
func TestFunctionPlans(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	src, err := parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var plans []string
	conf := src.config.ConnConfig.Copy()
	conf.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { plans = append(plans, n.Message) }
	c, err := pgx.ConnectConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(background) // nothing is open
	if err := (limits{statement: time.Minute, lock: time.Minute}).apply(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), `LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
	  SET auto_explain.log_level = notice`); err != nil {
		t.Fatal(err)
	}
	b := newBatch([]store.AppendRow{sendTo("a", "b", 1), sendTo("c", "d", 2), sendTo("a", "b", 3)})
	for _, makes := range []bool{true, false} {
		for _, hasty := range [][]string{{}, b.ids} {
			patient := b.ids[len(hasty):]
			if _, err := c.Exec(t.Context(), sqlAppend, makes, b.ids, patient, hasty, b.ci, b.senders, b.peers, b.mayMake, b.keys, b.hashes, b.messageIDs, b.kinds, b.countables, b.targets, b.bodies); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(plans) < 12 {
		t.Fatalf("only %d plans of appends", len(plans))
	}
	for _, p := range plans {
		judge(t, "append", p, true)
	}
	for _, one := range functions(string(b.rows[0].Conversation)) {
		plans = nil
		if _, err := c.Exec(t.Context(), one.query, one.args...); err != nil {
			t.Fatalf("%s: %v", one.query, err)
		}
		if len(plans) < one.plans+1 { // that of the call itself too
			t.Errorf("%s: only %d plans", one.query, len(plans))
		}
		for _, p := range plans {
			judge(t, one.query, p, true)
		}
	}
}

// function is a call of a function, and how many statements it runs at least.
type function struct {
	query string
	plans int
	args  []any
}

// functions are calls in an order in which each finds what it works on: the first
// leader does what leaders do, about the conversation conv of a and b.
func functions(conv string) []function {
	lead := func(more ...any) []any { return append([]any{"x", 1, "h"}, more...) }
	text, num := func(s string) []string { return []string{s} }, func(n int64) []int64 { return []int64{n} }
	small := func(n int16) []int16 { return []int16{n} }
	hash := make([]byte, 32)
	return []function{
		{sqlKnow, 1, []any{text("a"), 1}},
		{sqlClaim, 1, []any{"x", "h", "c", 1, 0}},
		{sqlSaveJob, 1, lead("expire", 1, 1)},
		{sqlSaveSeen, 1, lead(text("a"), num(5))},
		{sqlSetFeed, 2, lead(true)},
		{sqlGather, 2, lead(10)},
		{sqlPutEvents, 3, lead(small(101), text("b"), num(5))},
		{sqlSaveReceiver, 3, lead("shop", 0, 0, 0, []byte{}, num(1), []int32{1}, text("no"), num(2), text("b"), text(conv), num(1), num(7), text("a"))},
		{sqlSettlePushes, 5, lead(text("b"), text(conv), num(1), small(1), small(1), num(9), []int32{1}, num(7), text("a"), []bool{true})},
		{sqlSetMute, 4, []any{"b", conv, int64(1) << 60}},
		{sqlMark, 2, []any{text(conv), text("b"), num(1), num(1)}},
		{sqlRewind, 2, []any{"shop", 0, true}},
		{sqlTrimEvents, 2, lead(int64(1)<<60, 10)},
		{sqlSchedule, 5, []any{7, 5, 1, "a", conv, "b", int16(1), "r", "k", hash, hash, 10}},
		{sqlClaimScheduled, 3, lead(9, 10, 10, true)},
		{sqlSettleScheduled, 3, lead(num(7), small(3), num(0), small(0), num(7), num(1), num(9))},
		{sqlTrimScheduled, 2, lead(100, 10)},
		{sqlAnnounce, 5, []any{"r", "text", 5, int64(1) << 60, 100}},
		{sqlWithdraw, 3, []any{1, 6}},
		{sqlTrimAnnouncements, 2, lead(int64(1) << 60)},
		{sqlRetain, 4, lead(0, int64(1)<<60, int64(1)<<60, 10, 10)},
		{sqlExpire, 4, lead(1, 10)},
	}
}

// statements counts what a store sends.
type statements struct{ n atomic.Int64 }

// TraceQueryStart is pgx.QueryTracer's.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.n.Add(1)
	return ctx
}

// TraceQueryEnd is pgx.QueryTracer's.
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A page costs the same few statements however much is on it.
func TestStatementsOfAPage(t *testing.T) {
	var counted statements
	s, err := Open(t.Context(), Options{DSN: fresh(t, testenv.SharedPostgres(t)), Log: zaptest.NewLogger(t), tracer: &counted})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const all, changed = 500, 50
	send := func(n int) {
		for from := 0; from < n; from += 100 {
			rows := make([]store.AppendRow, min(100, n-from))
			for i := range rows {
				rows[i] = sendTo(fmt.Sprint("p", from+i), "u", from+i+1000*n)
			}
			mustAppend(t, s, rows...)
		}
	}
	send(all)
	token := ""
	for more := true; more; {
		p, err := s.Sync(t.Context(), store.SyncQuery{User: "u", Token: token, Limit: store.MaxSyncPage})
		if err != nil {
			t.Fatal(err)
		}
		token, more = p.Token, p.More
	}
	send(changed)
	cost := func(what string, most int64, fn func() error) {
		t.Helper()
		before, began := counted.n.Load(), time.Now()
		if err := fn(); err != nil {
			t.Fatal(err)
		}
		n := counted.n.Load() - before
		t.Logf("%s: %d statements, %v", what, n, time.Since(began).Round(10*time.Microsecond))
		if n > most {
			t.Errorf("%s: %d statements, at most %d are allowed", what, n, most)
		}
	}
	cost("sync", 3, func() error {
		p, err := s.Sync(t.Context(), store.SyncQuery{User: "u", Token: token, Limit: store.MaxSyncPage})
		if err == nil && (len(p.States) != changed || p.States[0].Unread != 2 || p.States[0].Last == nil || p.States[0].PeerMember == nil) {
			t.Errorf("%d states, the first is %+v", len(p.States), p.States[0])
		}
		return err
	})
	// Where nothing has changed since the token one statement is enough, also for
	// many users at once. Transactions of others may hold the horizon back.
	for try := 0; ; try++ {
		qs := []store.SyncQuery{{User: "u", Token: token, Entries: 20, Limit: store.MaxSyncPage, Digest: true}}
		before := counted.n.Load()
		pages, err := s.SyncMany(t.Context(), append(qs, qs...))
		if err != nil {
			t.Fatal(err)
		}
		token = pages[0].Token
		if len(pages[0].States)+len(pages[1].States) == 0 {
			if n := counted.n.Load() - before; n != 1 || pages[0].Digest == 0 {
				t.Errorf("%d statements where nothing has changed, the digest is %d", n, pages[0].Digest)
			}
			break
		}
		if try == 100 {
			t.Fatal("something changes all the time")
		}
		time.Sleep(50 * time.Millisecond)
	}
	conv := sendTo("p0", "u", 0).Conversation
	cost("history", 2, func() error {
		_, err := s.History(t.Context(), store.HistoryQuery{Reader: "u", Conversation: conv, Limit: 50})
		return err
	})
	cost("heads", 1, func() error {
		_, _, err := s.Heads(t.Context(), []im.UserID{"u", "p1", "p2"}, token)
		return err
	})
	var ps []store.Position
	for i := range 100 {
		ps = append(ps, store.Position{Conversation: sendTo(fmt.Sprint("p", i), "u", 0).Conversation, User: "u", Read: 1})
	}
	cost("positions", 3, func() error {
		_, err := s.SavePositions(t.Context(), ps)
		return err
	})
	cost("append", 1, func() error {
		_, err := s.Append(t.Context(), []store.AppendRow{sendTo("p0", "u", 7), sendTo("p1", "u", 8)})
		return err
	})
}
