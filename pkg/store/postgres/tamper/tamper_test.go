package tamper_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/store/postgres/tamper"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Tests{M: m}) }

// open is a server of its own with a store, and what tampers with it.
func open(t *testing.T) (*postgres.Store, *tamper.Server) {
	t.Helper()
	p := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"max_connections=30", "superuser_reserved_connections=0"}})
	dsn := p.Database(t)
	unsafe := dsn + "&imd_unsafe=yes" // tests do without fsync
	if _, err := postgres.Migrate(t.Context(), unsafe); err != nil {
		t.Fatal(err)
	}
	s, err := postgres.Open(t.Context(), postgres.Options{DSN: unsafe})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, tamper.New(p.DSN("postgres"), dsn)
}

// What the database took down is what it decided, and a claim that was refused is
// not among it. An effect of a node that does not hold the token is its own.
func TestLeadersAreWatched(t *testing.T) {
	s, server := open(t)
	if !server.Ready(t.Context()) {
		t.Fatal("a running server is not ready")
	}
	if err := server.WatchLeaders(t.Context(), "job", []string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	claim := func(holder string, revision, over int64) {
		_, _ = s.ClaimFence(t.Context(), store.FenceClaim{Name: "job", Holder: holder, Cluster: "c", Revision: revision, Over: over})
	}
	claim("a", 1, 0)
	claim("a", 1, 0) // the same once more
	claim("b", 2, 1)
	claim("a", 1, 0) // too late
	if holder, err := server.Holder(t.Context(), "job"); err != nil || holder != "b" {
		t.Errorf("%q leads, %v", holder, err)
	}
	if err := s.SaveJob(t.Context(), store.Proof{Name: "job", Holder: "b", Token: 2}, store.JobRow{Name: "j"}); err != nil {
		t.Error(err)
	}
	all, err := server.Acts(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	self := all[2].Holder // the user of this test is no node
	for i, want := range []tamper.Act{{Holder: "a", Token: 1}, {Holder: "b", Token: 2}, {Holder: self, Token: 2, Effect: "row"}} {
		a := all[i]
		if a.Name != "job" || a.Holder != want.Holder || a.Token != want.Token || a.Effect != want.Effect || time.Since(a.At) > time.Minute || self == "b" {
			t.Errorf("%d: %+v", i, a)
		}
	}
}

// A store lives through the end of its sessions, and a held row holds up nobody
// else.
func TestSessionsAndRows(t *testing.T) {
	s, server := open(t)
	create := func(ctx context.Context, id string) error {
		change := store.Change{Conversation: im.ConversationID(id), RequestID: im.ClientMessageID(uuid.NewString()), Actor: "u",
			MessageID: im.MessageID(time.Now().UnixNano()), Create: &store.CreateGroup{Name: id, Owner: "u"}}
		_, err := s.Change(ctx, change)
		return err
	}
	if err := create(t.Context(), "g_1"); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Terminate(t.Context(), false); err != nil || n == 0 {
		t.Errorf("ended %d sessions: %v", n, err)
	}
	release, err := server.Hold(t.Context(), []string{"g_1", "g_none"})
	if err != nil {
		t.Fatal(err)
	}
	if err := create(t.Context(), "g_2"); err != nil {
		if err = create(t.Context(), "g_2"); err != nil { // over a session that is not dead
			t.Errorf("another conversation: %v", err)
		}
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}

// A stranger takes what there is, and gives it back.
func TestExhaust(t *testing.T) {
	_, server := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	took, err := server.Exhaust(ctx)
	if err != nil || took < 10 {
		t.Errorf("took %d: %v", took, err)
	}
	for end := time.Now().Add(testenv.Patience); !server.Ready(t.Context()); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connections are not given back")
		}
	}
}
