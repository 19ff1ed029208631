package cmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/store/postgres"
)

// migrateTime bounds imd migrate up: a large index may take long.
const migrateTime = time.Hour

func newMigrate(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "migrate",
		Short: "Look at and renew the schema of a Postgres",
		Long: `Migrate brings the schema of the Postgres that keeps the messages to what this
program needs; serve refuses to start with another one. SQLite needs none of
this: serve renews its schema when it opens the file.`,
	}
	c.AddCommand(newMigrateStatus(a), newMigratePlan(a), newMigrateUp(a))
	return c
}

func newMigrateStatus(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Say where the schema stands",
		Long: `Status compares the schema with what this program needs. It changes nothing.

Exit status: 0 if they agree, 78 if not.`,
		Example: "  imd migrate status --postgres-file /etc/imd/postgres",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c).only("storage.postgres", "storage.postgres_file")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		state, err := schemaOf(ctx, s, postgres.Status)
		if err != nil {
			return ofDatabase(err)
		}
		if err := a.printer().data(state, func(w io.Writer) { printSchema(w, state) }); err != nil {
			return err
		}
		return state.Judge()
	}
	return c
}

func newMigratePlan(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "plan",
		Short: "Show what migrate up would run",
		Long: `Plan prints the statements of every step that is not applied yet. It changes nothing.

Exit status: 0 also if there is nothing to do, 78 if the schema is newer than what
this program needs.`,
		Example: "  imd migrate plan --postgres-file /etc/imd/postgres",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c).only("storage.postgres", "storage.postgres_file")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, cancel := a.bounded(c.Context())
		defer cancel()
		plan, err := schemaOf(ctx, s, postgres.Plan)
		if err != nil {
			return ofDatabase(err)
		}
		var steps []postgres.Migration
		for _, m := range plan.Migrations {
			if m.SQL != "" {
				steps = append(steps, m)
			}
		}
		plan.Migrations = append([]postgres.Migration{}, steps...)
		return a.printer().data(plan, func(w io.Writer) { printPlan(w, plan) })
	}
	return c
}

func newMigrateUp(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "up",
		Short: "Renew the schema",
		Long: `Up applies every step that is missing, each in a transaction of its own, under a
lock: when several run at once, one works and the others find nothing to do. One
that is stopped half-way leaves whole steps; run it again.

Exit status: 0 when the schema is what this program needs, 78 if it is newer, or
if the server is a standby or behind a pooler in transaction mode.`,
		Example: "  imd migrate up --postgres-file /etc/imd/postgres",
		Args:    cobra.NoArgs,
	}
	s := addSettings(a, c).only("storage.postgres", "storage.postgres_file")
	c.RunE = func(c *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeout(c.Context(), migrateTime)
		defer cancel()
		dsn, err := postgresName(s)
		if err != nil {
			return err
		}
		done, err := postgres.Migrate(ctx, dsn)
		if err != nil {
			return ofDatabase(err)
		}
		state, err := postgres.Status(ctx, dsn)
		if err != nil {
			return ofDatabase(err)
		}
		out := struct {
			Have    int64                `json:"have"`
			Applied []postgres.Migration `json:"applied"`
		}{state.Have, append([]postgres.Migration{}, done...)}
		return a.printer().data(out, func(w io.Writer) { printMigrated(w, state, done) })
	}
	return c
}

// postgresName is the database that the settings name.
func postgresName(s *settingFlags) (string, error) {
	l, err := s.load()
	if err != nil {
		return "", err
	}
	st := storage.DefaultConfig()
	if err := l.values.Decode("storage", &st); err != nil {
		return "", err
	}
	if st.Postgres == "" {
		return "", config.Errorf("storage.postgres", "no Postgres is given, and SQLite needs no migrate; give --postgres-file")
	}
	return st.Postgres.Reveal(), nil
}

// schemaOf reads the schema's state with look.
func schemaOf(ctx context.Context, s *settingFlags, look func(context.Context, string) (postgres.Schema, error)) (postgres.Schema, error) {
	dsn, err := postgresName(s)
	if err != nil {
		return postgres.Schema{}, err
	}
	return look(ctx, dsn)
}

func printSchema(w io.Writer, s postgres.Schema) {
	var rows [][]string
	for _, m := range s.Migrations {
		at := "not applied"
		if !m.Applied.IsZero() {
			at = m.Applied.UTC().Format(time.DateTime)
		}
		rows = append(rows, []string{fmt.Sprint(m.Version), m.Name, at})
	}
	table(w, "VERSION STEP APPLIED", rows)
	fmt.Fprintf(w, "the database is at %d, this program needs %d\n", s.Have, s.Need)
}

func printPlan(w io.Writer, s postgres.Schema) {
	for _, m := range s.Migrations {
		fmt.Fprintf(w, "-- step %d: %s\n%s\n", m.Version, m.Name, strings.TrimSpace(strings.ReplaceAll(m.SQL, "-- +goose Up\n", "")))
	}
	if len(s.Migrations) == 0 {
		fmt.Fprintf(w, "nothing to do: the database is at %d, this program needs %d\n", s.Have, s.Need)
	}
}

func printMigrated(w io.Writer, s postgres.Schema, done []postgres.Migration) {
	for _, m := range done {
		fmt.Fprintf(w, "applied %s in %s\n", m.Name, m.Took)
	}
	fmt.Fprintf(w, "the schema is at %d\n", s.Have)
}
