package presence

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// MaxRead is the most users that one caller reads at once.
const MaxRead = 200

// Routes is what Read asks of the route store.
type Routes interface {
	Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error)
}

// Directory is what Read asks of the directory.
type Directory interface {
	LastSeen(context.Context, *v1.LastSeenRequest) (*v1.LastSeenResponse, error)
}

// Read tells who has a route at this moment, and when the others were last seen,
// in the order of the users. It needs no leader and waits for nobody to come back,
// so that it may be ahead of what watchers are told. Errors: those of the route
// store and the directory.
func Read(ctx context.Context, routes Routes, d Directory, users []string) ([]*clientv1.UserPresence, error) {
	ids := make([]im.UserID, len(users))
	for i, u := range users {
		ids[i] = im.UserID(u)
	}
	found, err := routes.Lookup(ctx, ids)
	if err != nil {
		return nil, err
	}
	online := map[string]Mask{}
	for _, r := range found {
		online[string(r.User)] |= MaskOf(r.Class)
	}
	ask := &v1.LastSeenRequest{}
	for _, u := range users {
		if online[u] == 0 {
			ask.UserIds = append(ask.UserIds, u)
		}
	}
	seen := map[string]int64{}
	if len(ask.UserIds) > 0 {
		res, err := d.LastSeen(ctx, ask)
		if err != nil {
			return nil, err
		}
		for _, x := range res.Users {
			seen[x.UserId] = x.AtMs
		}
	}
	out := make([]*clientv1.UserPresence, len(users))
	for i, u := range users {
		s := State{User: ids[i], Online: online[u]}
		if ms := seen[u]; ms > 0 {
			s.LastSeen = time.UnixMilli(ms)
		}
		out[i] = Wire(s)
	}
	return out, nil
}

// Wire is a state as clients get it.
func Wire(s State) *clientv1.UserPresence {
	p := &clientv1.UserPresence{UserId: string(s.User), Online: s.Online != 0}
	for _, c := range s.Online.Classes() {
		p.Classes = append(p.Classes, string(c))
	}
	if s.Online == 0 && !s.LastSeen.IsZero() {
		p.LastSeenMs = s.LastSeen.UnixMilli()
	}
	return p
}
