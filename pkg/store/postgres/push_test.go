package postgres

import (
	"fmt"
	"testing"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// A leader of the version before, which does not say whether a try may have told the
// user, leaves the mark of it all the same.
func TestPushesSettledByTheVersionBefore(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	s, c := openAt(t, dsn), connectTo(t, dsn)
	defer s.Close()
	fence, err := s.ClaimFence(t.Context(), store.FenceClaim{Name: "push", Holder: "h", Cluster: "c", Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		had         int // number of the message that is due; 0 = it was read meanwhile
		state       int
		next, tries int
		want        string // number, state, whether the user was told
	}{
		"sent":                     {had: 5, state: 1, next: 2, want: "5 2 true"},
		"tried":                    {had: 5, state: 1, next: 1, tries: 1, want: "5 1 true"},
		"given up":                 {had: 5, state: 1, next: 4, tries: 3, want: "5 4 true"},
		"not tried":                {had: 5, state: 1, next: 1, want: "5 1 false"},
		"not needed":               {had: 5, state: 1, tries: 1, want: "none"},
		"a newer one came":         {had: 6, state: 1, next: 1, tries: 1, want: "6 1 true"},
		"read while it was tried":  {state: 1, next: 1, tries: 1, want: "5 3 false"},
		"withdrawn at another try": {had: 5, state: 3, next: 3, tries: 2, want: "5 3 false"},
	} {
		if _, err := c.Exec(t.Context(), `DELETE FROM push`); err != nil {
			t.Fatal(err)
		}
		if tt.had > 0 {
			_, err := c.Exec(t.Context(), `INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
			  VALUES ('ann', 'g', $1, 1, 1, 1, 0, $2, 'bob')`, tt.had, tt.state)
			if err != nil {
				t.Fatal(err)
			}
		}
		p, ok := fence.Proof(), false
		err := c.QueryRow(t.Context(), `SELECT imd_settle_pushes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`, p.Name, p.Token, p.Holder,
			[]string{"ann"}, []string{"g"}, []int64{5}, []int16{int16(tt.state)}, []int16{int16(tt.next)}, []int64{9}, []int32{int32(tt.tries)},
			[]int64{1}, []string{"bob"}).Scan(&ok)
		if err != nil || !ok {
			t.Fatal(name, ok, err)
		}
		got := "none"
		var seq, state int64
		var told bool
		if err := c.QueryRow(t.Context(), `SELECT seq, state, told FROM push`).Scan(&seq, &state, &told); err == nil {
			got = fmt.Sprint(seq, state, told)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
