package control

import (
	"net/http"
	"strings"
	"time"
)

const (
	// AwaitPath is the prefix of the path on the ops listener at which standbys
	// wait for the end of a leader; the name of the election follows.
	AwaitPath = "/election/"
	// AwaitLimit is how long they wait for one answer.
	AwaitLimit = 10 * time.Second
	// awaiting is how many may wait at a time.
	awaiting = 256
)

// Await serves AwaitPath: it answers when this process's term in the election
// ends, after AwaitLimit, or at once if it does not lead, and always with the
// boot id. ended gives a channel that is closed with the term; nil = this
// process does not lead. The answer says nothing secret, so nobody needs a key;
// more than 256 at a time are turned away with 503.
func Await(boot string, ended func(name string) <-chan struct{}) http.Handler {
	places := make(chan struct{}, awaiting)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(BootHeader, boot)
		w.Header().Set("Cache-Control", "no-store")
		end := ended(strings.TrimPrefix(r.URL.Path, AwaitPath))
		if end == nil {
			http.Error(w, "this process does not lead", http.StatusNotFound)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			http.Error(w, "too many wait already", http.StatusServiceUnavailable)
			return
		}
		late := time.NewTimer(AwaitLimit)
		defer late.Stop()
		select {
		case <-end:
		case <-late.C:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
