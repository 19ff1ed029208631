package postgres

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// One page of a sync is three statements with entries, and two without, however
// many conversations are on it.
func TestStatementsOfSync(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"shared_preload_libraries=pg_stat_statements"}})
	dsn := fresh(t, server)
	admin := connectTo(t, dsn)
	if _, err := admin.Exec(t.Context(), "CREATE EXTENSION pg_stat_statements"); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, dsn)
	defer s.Close()
	const all, changed = 120, 50
	serial := 0
	write := func(n int) {
		for i := range n {
			serial++
			mustAppend(t, s, sendTo(fmt.Sprint("peer", i), "ann", serial))
		}
	}
	write(all)
	first, err := s.Sync(t.Context(), store.SyncQuery{User: "ann", Limit: store.MaxSyncPage})
	if err != nil || len(first.States) != all {
		t.Fatalf("%d conversations, %v", len(first.States), err)
	}
	cursors := map[im.ConversationID]im.Seq{}
	for _, st := range first.States {
		cursors[st.Conversation] = st.Head
	}
	write(changed)
	for entries, most := range map[int]int64{0: 2, 20: 3} {
		if _, err := admin.Exec(t.Context(), "SELECT pg_stat_statements_reset()"); err != nil {
			t.Fatal(err)
		}
		p, err := s.Sync(t.Context(), store.SyncQuery{User: "ann", Token: first.Token, Limit: store.MaxSyncPage, Cursors: cursors, Entries: entries, Digest: true})
		if err != nil || len(p.States) != changed || p.More {
			t.Fatalf("%d conversations, %v", len(p.States), err)
		}
		for _, st := range p.States {
			if entries > 0 && len(st.Page.Entries) != 1 {
				t.Errorf("%s: %+v", st.Conversation, st.Page)
			}
		}
		ran := map[string]int64{}
		rows, err := admin.Query(t.Context(), `SELECT s.query, s.calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
		  WHERE d.datname = current_database() AND s.query LIKE 'SELECT%' AND s.query NOT LIKE '%pg_stat_statements%'`)
		if err != nil {
			t.Fatal(err)
		}
		var query string
		var calls int64
		for rows.Next() {
			if err := rows.Scan(&query, &calls); err != nil {
				t.Fatal(err)
			}
			ran[query] += calls
		}
		sum := int64(0)
		for _, n := range ran {
			sum += n
		}
		if rows.Err() != nil || sum != most {
			t.Errorf("%d statements with %d entries each, want %d: %v, %v", sum, entries, most, slices.Sorted(maps.Keys(ran)), rows.Err())
		}
	}
}
