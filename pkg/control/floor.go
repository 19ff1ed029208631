package control

import (
	"fmt"
	"sync"
)

// StaleLeaderError says that a call is that of a leader that has been followed.
// It must stop; repeating the call does not help.
type StaleLeaderError struct {
	Election string
	Token    int64 // of the call
	Newest   int64 // that is known
}

// Error names the tokens.
func (e *StaleLeaderError) Error() string {
	return fmt.Sprintf("control: token %d of the election %s was followed by %d", e.Token, e.Election, e.Newest)
}

// Floor is how one who receives the calls of leaders refuses those of leaders
// that have been followed: for each election it keeps the highest token that was
// announced or shown, and admits none below. A leader that was paused for longer
// than its term and goes on in the middle of its work is stopped by it. Tokens
// come from the message store and go back only with a store that was restored, for
// which all nodes start anew. The zero value is ready. Safe for concurrent use.
type Floor struct {
	mu     sync.Mutex
	tokens map[string]int64
}

// Admit decides on a call that shows a token, after it has taken in what is
// announced. Errors: a *StaleLeaderError. A leader without a token (0) is never
// admitted: it is elected and does not act yet.
func (f *Floor) Admit(announced *Leaders, election string, token int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	newest := f.tokens[election]
	if l, ok := announced.Of(election); ok {
		newest = max(newest, l.Token)
	}
	if f.tokens == nil {
		f.tokens = map[string]int64{}
	}
	f.tokens[election] = max(newest, token)
	if token < newest || token <= 0 {
		return &StaleLeaderError{Election: election, Token: token, Newest: newest}
	}
	return nil
}
