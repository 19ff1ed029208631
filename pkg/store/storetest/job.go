package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

func jobRows(k *kit) {
	old := k.fence("x", 1)
	at := time.UnixMilli(1_700_000_000_123)
	k.must(k.s.SaveJob(k.ctx(), old.Proof(), store.JobRow{Name: "sweep", Ran: at, Rounds: 7}))
	k.must(k.s.SaveJob(k.ctx(), old.Proof(), store.JobRow{Name: "expire", Token: 99, Holder: "not asked"}))
	k.fence("x", 2)
	if err := k.s.SaveJob(k.ctx(), old.Proof(), store.JobRow{Name: "sweep", Ran: at.Add(time.Hour), Rounds: 8}); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed saved a job: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", 65)} {
		if err := k.s.SaveJob(k.ctx(), old.Proof(), store.JobRow{Name: name}); err == nil {
			k.Errorf("a job %q is kept", name)
		}
	}
	k.s = k.d.Reopen(k.T, k.s)
	all, err := k.s.Jobs(k.ctx())
	k.must(err)
	if len(all) != 2 || all[0].Name != "expire" || all[0].Token != 1 || all[0].Holder != old.Holder || !all[0].Ran.IsZero() ||
		all[1].Name != "sweep" || !all[1].Ran.Equal(at) || all[1].Rounds != 7 {
		k.Errorf("jobs: %+v", all)
	}
}
