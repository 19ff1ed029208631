// Command stranger writes an entry into a node's database that takes the next
// number of a conversation, as no part of the product would. It is a program of
// its own so that the tests need not be built with the database.
//
//	stranger imd.db CONVERSATION
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"time"

	_ "modernc.org/sqlite" // the driver
)

func main() {
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(path, conv string) error {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = db.ExecContext(ctx, `INSERT INTO entry (conv, seq, prev_seq, kind, countable, sender, message_id, client_message_id,
	  server_time_ms, target_seq, changed_seq) SELECT num, head + 1, head, 1, 1, 'stranger', 7, 'foreign', 0, 0, 0 FROM conversation WHERE id = ?`, conv)
	return err
}
