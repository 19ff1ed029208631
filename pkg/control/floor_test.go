package control

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

func TestFloor(t *testing.T) {
	var f Floor
	announce := func(token int64) *Leaders { return &Leaders{All: []Leader{{Name: "job", Token: token}}} }
	nobody := &Leaders{}
	for _, step := range []struct {
		what      string
		announced *Leaders
		token     int64
		admitted  bool
	}{
		{"nobody was announced yet", nobody, 3, true},
		{"again", nobody, 3, true},
		{"an older one", nobody, 2, false},
		{"an announcement is behind", announce(2), 3, true},
		{"a newer one that was not announced yet", announce(3), 4, true},
		{"the one before it", announce(3), 3, false},
		{"a newer one was announced and has not called yet", announce(6), 5, false},
		{"it calls", announce(6), 6, true},
		{"elected, not acting yet", announce(0), 6, true},
		{"without a token", announce(0), 0, false},
		{"what was announced counts when it has gone", nobody, 5, false},
	} {
		err := f.Admit(step.announced, "job", step.token)
		var stale *StaleLeaderError
		if (err == nil) != step.admitted || err != nil && !errors.As(err, &stale) {
			t.Errorf("%s: %v", step.what, err)
		}
	}
	if err := f.Admit(nobody, "other", 1); err != nil {
		t.Errorf("another election: %v", err)
	}
}

// Whatever comes together, after a token was admitted no lower one is.
func TestFloorNeverSinks(t *testing.T) {
	var f Floor
	var mu sync.Mutex
	admitted := int64(0) // before a call began
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, 1))
			for range 2000 {
				token := 1 + rnd.Int64N(1000)
				mu.Lock()
				least := admitted
				mu.Unlock()
				if f.Admit(&Leaders{}, "job", token) != nil {
					continue
				}
				mu.Lock()
				if token < least {
					t.Errorf("%d was admitted after %d", token, least)
				}
				admitted = max(admitted, token)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}
