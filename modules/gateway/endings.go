package gateway

import (
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

const (
	// endingTime is how long the end of a login is remembered here. The message
	// store remembers it for as long as its tokens could live.
	endingTime = 10 * time.Minute
	// maxEndings is how many are remembered at most.
	maxEndings = 8192
)

// endings remembers logins that were ended for good, as those who ended them
// told this node. They are refused without a question, also before their row
// can be seen everywhere. Safe for concurrent use.
type endings struct {
	mu   sync.Mutex
	why  map[ending]reasoned
	list []ending // the oldest first
}

type ending struct {
	user  im.UserID
	login im.LoginID
}

type reasoned struct {
	reason string
	until  time.Time
}

func newEndings() *endings { return &endings{why: map[ending]reasoned{}} }

// lasting are the reasons that end a login and not only a session.
var lasting = map[string]bool{"replaced": true, "kicked": true, "revoked": true}

// note remembers that a login was ended.
func (e *endings) note(user im.UserID, login im.LoginID, reason string, now time.Time) {
	if login == "" || !lasting[reason] {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k := ending{user, login}
	if _, known := e.why[k]; !known {
		e.list = append(e.list, k)
	}
	e.why[k] = reasoned{reason, now.Add(endingTime)}
	for len(e.list) > maxEndings {
		delete(e.why, e.list[0])
		e.list = e.list[1:]
	}
}

// of tells why a login was ended; "" = nothing is known of it.
func (e *endings) of(user im.UserID, login im.LoginID, now time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.why[ending{user, login}]
	if !ok || now.After(r.until) {
		return ""
	}
	return r.reason
}
