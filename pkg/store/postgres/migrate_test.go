package postgres

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// childDSN is the environment of this test program when it runs as a child that
// migrates a database.
const childDSN = "IMD_TEST_POSTGRES_CHILD"

// asChild migrates the database that the environment names; false in the test
// program itself.
func asChild() bool {
	dsn := os.Getenv(childDSN)
	if dsn == "" {
		return false
	}
	done, err := Migrate(background, dsn)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("applied", len(done))
	return true
}

// child is a process that migrates the database of dsn.
func child(t *testing.T, dsn string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childDSN+"="+dsn)
	c.Stderr = os.Stderr
	return c
}

// Of several processes that migrate at once each step is done by one, and all
// end well.
func TestMigrateAtOnce(t *testing.T) {
	dsn := unsafely(testenv.SharedPostgres(t).Database(t))
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 4 {
		cmd := child(t, dsn)
		wg.Go(func() {
			out, err := cmd.Output()
			n := 0
			if _, scan := fmt.Sscanf(string(out), "applied %d", &n); err != nil || scan != nil {
				t.Errorf("%s: %v", out, err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	if total != len(versions()) {
		t.Errorf("%d steps were done, there are %d", total, len(versions()))
	}
	openAt(t, dsn).Close()
}

// A process that is killed in the middle of a step leaves nothing of it, and
// nobody waits for it.
func TestMigrateKilled(t *testing.T) {
	server := testenv.SharedPostgres(t)
	dsn := unsafely(server.Database(t))
	stranger := connectTo(t, dsn)
	tx, err := stranger.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// A name that is taken and not committed stops the first step half-way.
	if _, err := tx.Exec(t.Context(), `CREATE TABLE member ()`); err != nil {
		t.Fatal(err)
	}
	cmd := child(t, dsn)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watch := connectTo(t, dsn)
	eventually(t, func() bool { return waits(t, watch) > 0 })
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // was killed
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	var done []Migration
	took := testenv.Took(func() { done, err = Migrate(t.Context(), dsn) })
	if err != nil || len(done) != len(versions()) || took > testenv.Patience {
		t.Errorf("migrating again: %d steps, %v, %v", len(done), took, err)
	}
	openAt(t, dsn).Close()
}

// A plan shows the statements that are missing, and nothing when none is.
func TestPlan(t *testing.T) {
	dsn := unsafely(testenv.SharedPostgres(t).Database(t))
	plan, err := Plan(t.Context(), dsn)
	if err != nil || plan.Have != 0 || plan.Need != needed() || !strings.Contains(plan.Migrations[0].SQL, "PARTITION BY HASH") {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	plan, err = Plan(t.Context(), dsn)
	if err != nil || plan.Judge() != nil {
		t.Errorf("plan: %+v, %v", plan, err)
	}
	for _, m := range plan.Migrations {
		if m.SQL != "" || m.Applied.IsZero() {
			t.Errorf("after migrating: %+v", m)
		}
	}
}

// A server that takes a connection and says nothing does not hold anybody up.
func TestMigrateWithoutAnAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dsn := "postgres://imd@" + l.Addr().String() + "/imd?sslmode=disable"
	took := testenv.Took(func() {
		if _, err := Migrate(t.Context(), dsn); err == nil || !strings.Contains(err.Error(), "cannot be reached") {
			t.Errorf("Migrate() = %v; want a sentence", err)
		}
	})
	if took > 3*connectTime {
		t.Errorf("it took %v", took)
	}
}

// A program that is older than the schema plans nothing and says why.
func TestPlanForANewerSchema(t *testing.T) {
	dsn := unsafely(testenv.SharedPostgres(t).Database(t))
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if _, err := connectTo(t, dsn).Exec(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES ($1, true)`, needed()+1); err != nil {
		t.Fatal(err)
	}
	if _, err := Plan(t.Context(), dsn); !errors.Is(err, store.ErrSchema) {
		t.Errorf("Plan() = %v; want %v", err, store.ErrSchema)
	}
}

// The newest migration that makes a function has it as the file in functions says,
// and so has a database. Who changes a function changes that file and adds a
// migration with its text.
func TestFunctionsAreThoseOfTheFiles(t *testing.T) {
	files, err := filepath.Glob("functions/*.sql")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	steps, err := filepath.Glob("migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(steps)
	c := connectTo(t, fresh(t, testenv.SharedPostgres(t)))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := "imd_" + strings.TrimSuffix(filepath.Base(file), ".sql")
		newest := ""
		for _, step := range steps {
			if b, err := os.ReadFile(step); err != nil {
				t.Fatal(err)
			} else if strings.Contains(string(b), "FUNCTION "+name+"(") {
				newest = string(b)
			}
		}
		if !strings.Contains(newest, string(text)) {
			t.Errorf("the newest migration that makes %s has another text than %s", name, file)
		}
		_, body, _ := strings.Cut(string(text), "$$")
		var have string
		if err := c.QueryRow(t.Context(), `SELECT prosrc FROM pg_proc WHERE proname = $1`, name).Scan(&have); err != nil || have+"$$;\n" != body {
			t.Errorf("a database has another %s than %s: %v", name, file, err)
		}
	}
}

// waits is how many locks are waited for in the database of a session; 0 where that
// cannot be said at this moment.
func waits(t testing.TB, c *pgx.Conn) (n int) {
	t.Helper()
	err := c.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.datname = current_database()
	  JOIN pg_stat_activity a ON a.pid = l.pid AND a.datid = d.oid WHERE NOT l.granted`).Scan(&n)
	if err != nil {
		t.Log(err)
	}
	return n
}
