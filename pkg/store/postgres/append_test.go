package postgres

import (
	"fmt"
	"testing"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// The row that many appends write is written last, so that none waits for the work of
// another.
func TestAppendsStampTheirSlotLast(t *testing.T) {
	for name, n := range map[string]store.Numbering{"transaction": {}, "segment": {Allocator: store.Segment}} {
		t.Run(name, func(t *testing.T) {
			dsn := fresh(t, testenv.SharedPostgres(t))
			admin := connectTo(t, dsn)
			for _, q := range []string{
				`CREATE TABLE trail (n serial, name text)`,
				`CREATE FUNCTION trace() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO trail (name) VALUES (TG_ARGV[0]); RETURN NEW; END $$`,
				`CREATE TRIGGER trace BEFORE INSERT ON entry FOR EACH ROW EXECUTE FUNCTION trace('entry')`,
				`CREATE TRIGGER trace BEFORE INSERT ON feed FOR EACH ROW EXECUTE FUNCTION trace('feed')`,
				`CREATE TRIGGER trace BEFORE UPDATE ON conversation FOR EACH ROW EXECUTE FUNCTION trace('conversation')`,
				`CREATE TRIGGER trace BEFORE UPDATE ON slot FOR EACH ROW EXECUTE FUNCTION trace('slot')`,
				`UPDATE outbox SET feeding = true`,
			} {
				if _, err := admin.Exec(t.Context(), q); err != nil {
					t.Fatal(q, err)
				}
			}
			s := openAt(t, numbered(dsn, n))
			defer s.Close()
			mustAppend(t, s, sendTo("ann", "bob", 1))
			if _, err := admin.Exec(t.Context(), `DELETE FROM trail`); err != nil {
				t.Fatal(err)
			}
			mustAppend(t, s, sendTo("ann", "bob", 2))
			var order []string
			if err := admin.QueryRow(t.Context(), `SELECT array_agg(name ORDER BY n) FROM trail`).Scan(&order); err != nil || fmt.Sprint(order) != "[feed conversation entry slot]" {
				t.Errorf("written in this order: %v, %v", order, err)
			}
		})
	}
}
