package api

import (
	"cmp"
	"context"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// users is the UserService.
type users struct{ a *API }

// Get tells what is known of a user.
func (s users) Get(ctx context.Context, r *imdv1.UserServiceGetRequest) (*imdv1.UserServiceGetResponse, error) {
	if err := checkID("user_id", r.UserId); err != nil {
		return nil, err
	}
	res, err := s.a.Directory.User(ctx, &v1.UserRequest{UserId: r.UserId})
	if err != nil {
		return nil, err
	}
	return &imdv1.UserServiceGetResponse{UserId: res.UserId, CreatedMs: res.CreatedMs, Disabled: res.Disabled}, nil
}

// SetDisabled disables a user or enables it again.
func (s users) SetDisabled(ctx context.Context, r *imdv1.SetDisabledRequest) (*imdv1.SetDisabledResponse, error) {
	if err := checkID("user_id", r.UserId); err != nil {
		return nil, err
	}
	if _, err := s.a.Directory.SetUser(ctx, &v1.SetUserRequest{UserId: r.UserId, Disabled: r.Disabled}); err != nil {
		return nil, err
	}
	return &imdv1.SetDisabledResponse{}, nil
}

// Block refuses direct messages from a user to the caller.
func (s users) Block(ctx context.Context, r *imdv1.BlockRequest) (*imdv1.BlockResponse, error) {
	if err := s.setBlock(ctx, r.UserId, true); err != nil {
		return nil, err
	}
	return &imdv1.BlockResponse{}, nil
}

// Unblock takes a block back.
func (s users) Unblock(ctx context.Context, r *imdv1.UnblockRequest) (*imdv1.UnblockResponse, error) {
	if err := s.setBlock(ctx, r.UserId, false); err != nil {
		return nil, err
	}
	return &imdv1.UnblockResponse{}, nil
}

func (s users) setBlock(ctx context.Context, other string, blocked bool) error {
	who := string(actor(ctx))
	if err := checkID("user_id", other); err != nil {
		return err
	}
	if other == who {
		return badRequest("user_id is the caller")
	}
	_, err := s.a.Directory.SetBlock(ctx, &v1.SetBlockRequest{UserId: who, BlockedUserId: other, Blocked: blocked})
	return err
}

// Devices lists the live sessions of a user, the oldest first.
func (s users) Devices(ctx context.Context, r *imdv1.DevicesRequest) (*imdv1.DevicesResponse, error) {
	if err := checkID("user_id", r.UserId); err != nil {
		return nil, err
	}
	routes, err := s.a.Routes()
	if err != nil {
		return nil, err
	}
	found, err := routes.Lookup(ctx, []im.UserID{im.UserID(r.UserId)})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b store.Route) int { return cmp.Compare(a.Epoch, b.Epoch) })
	res := &imdv1.DevicesResponse{}
	for _, x := range found {
		res.Devices = append(res.Devices, &imdv1.Device{SessionId: string(x.Session), LoginId: string(x.Login), DeviceId: string(x.Device),
			Class: string(x.Class), NodeId: string(x.Node), SinceMs: x.Since.UnixMilli()})
	}
	return res, nil
}

// Kick ends one login, or all logins a user has at this moment.
func (s users) Kick(ctx context.Context, r *imdv1.KickRequest) (*imdv1.KickResponse, error) {
	if err := s.a.endLogins(ctx, r.UserId, r.LoginId, clientv1.Reason_REASON_KICKED); err != nil {
		return nil, err
	}
	return &imdv1.KickResponse{}, nil
}
