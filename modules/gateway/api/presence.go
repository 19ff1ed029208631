package api

import (
	"context"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// presences is the PresenceService.
type presences struct{ a *API }

// Get tells who is online at this moment.
func (s presences) Get(ctx context.Context, r *imdv1.PresenceServiceGetRequest) (*imdv1.PresenceServiceGetResponse, error) {
	if len(r.UserIds) == 0 || len(r.UserIds) > presence.MaxRead {
		return nil, badRequest("user_ids: 1 to 200 are wanted")
	}
	if err := checkIDs("user_ids", r.UserIds); err != nil {
		return nil, err
	}
	users := r.UserIds
	if who := string(actor(ctx)); who != "" {
		res, err := s.a.Directory.Visible(ctx, &v1.VisibleRequest{UserId: who, UserIds: users})
		if err != nil {
			return nil, err
		}
		users = slices.DeleteFunc(slices.Clone(users), func(u string) bool { return u != who && !slices.Contains(res.UserIds, u) })
		if len(users) == 0 {
			return nil, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "api.presence", "there is no conversation with any of them")
		}
	}
	routes, err := s.a.Routes()
	if err != nil {
		return nil, err
	}
	found, err := presence.Read(ctx, routes, s.a.Directory, users)
	if err != nil {
		return nil, err
	}
	return &imdv1.PresenceServiceGetResponse{Users: found}, nil
}
