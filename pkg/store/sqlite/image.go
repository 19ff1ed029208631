package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"time"
)

// Facts say what a database holds.
type Facts struct {
	Schema    int64            // number of the last migration
	DataEpoch string           // the history of the store
	Commits   int64            // grows with each commit
	Newest    time.Time        // server time of the newest entry; zero = none
	Bytes     int64            // of the whole file
	Counts    map[string]int64 // rows of each table
}

// Image is a database as it was at one moment. Another process, or this one,
// may go on writing to it: it neither waits for the image nor is seen in it, but
// what it writes stays in the write-ahead log until the image is closed. Not
// safe for concurrent use.
type Image struct {
	Facts
	conn
	pages int64
}

// OpenImage looks at the database file at path. It takes no lock that a server
// would mind, and reads all tables once to count their rows.
//
// Errors: fs.ErrNotExist; one sentence that wraps store.ErrCorrupt if it is no
// database of imd.
func OpenImage(ctx context.Context, path string) (_ *Image, err error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("the database: %w", err)
	}
	db, err := connect(path, 1, "ro", "busy_timeout(5000)", "query_only(1)")
	if err != nil {
		return nil, err
	}
	i := &Image{conn: conn{db: db}}
	defer func() {
		if err != nil {
			err = errors.Join(explain(path, err), i.Close())
		}
	}()
	if err := i.open(ctx); err != nil {
		return nil, err
	}
	if _, err := i.exec("BEGIN"); err != nil {
		return nil, err
	}
	if i.Facts, err = i.facts(ctx); err != nil {
		return nil, err
	}
	var size int64
	if err := errors.Join(i.row(`PRAGMA page_count`, nil, &i.pages), i.row(`PRAGMA page_size`, nil, &size)); err != nil {
		return nil, err
	}
	i.Bytes = i.pages * size
	return i, nil
}

// tables are those whose rows are worth counting. Older schemas lack some.
var tables = []string{"api_key", "block", "conversation", "creation", "entry", "fence", "member", "revocation", "user", "worker"}

// facts reads what the database holds, but for its size.
func (c *conn) facts(ctx context.Context) (f Facts, err error) {
	var newest int64
	var clean bool
	err = c.row(sqlStore, nil, &f.DataEpoch, &f.Commits, &newest, &clean)
	if errors.Is(err, sql.ErrNoRows) {
		return f, errors.New("it holds no store")
	}
	if err != nil {
		return f, err
	}
	f.Newest = moment(newest)
	if err := c.row(`SELECT max(version_id) FROM goose_db_version WHERE is_applied`, nil, &f.Schema); err != nil {
		return f, err
	}
	f.Counts = map[string]int64{}
	err = c.each(ctx, `SELECT name FROM sqlite_schema WHERE type = 'table'`, nil, func(scan func(...any) error) error {
		var name string
		if err := scan(&name); err != nil {
			return err
		}
		if slices.Contains(tables, name) {
			f.Counts[name] = 0
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.Counts)) {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		var n int64
		if err := c.row(`SELECT count(*) FROM `+name, nil, &n); err != nil {
			return f, err
		}
		f.Counts[name] = n
	}
	return f, nil
}

// WriteTo writes the database file as it was at the moment of the image, Bytes
// long. progress is told now and then how many bytes are written.
func (i *Image) WriteTo(ctx context.Context, w io.Writer, progress func(written int64)) error {
	var written, page int64
	err := i.each(ctx, `SELECT data FROM sqlite_dbpage`, nil, func(scan func(...any) error) error {
		var data sql.RawBytes
		if err := scan(&data); err != nil {
			return err
		}
		n, err := w.Write(data)
		written += int64(n)
		if page++; page%1024 == 0 {
			progress(written)
		}
		return err
	})
	if err != nil {
		return err
	}
	if written != i.Bytes {
		return fmt.Errorf("read %d bytes of the database instead of %d", written, i.Bytes)
	}
	progress(written)
	return nil
}

// Close lets go of the moment.
func (i *Image) Close() error { return errors.Join(i.drop(), i.db.Close()) }
