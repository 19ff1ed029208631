package admin

import (
	"cmp"
	"context"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/proto/gen/adminv1"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Routes is what the services ask of the route store.
type Routes interface {
	Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error)
}

// devices is the DeviceService.
type devices struct{ a *Admin }

// ListDevices lists the live sessions of a user, the oldest first.
func (d devices) ListDevices(ctx context.Context, r *adminv1.ListDevicesRequest) (*adminv1.ListDevicesResponse, error) {
	if err := checkUser(r.UserId); err != nil {
		return nil, err
	}
	routes, err := d.a.Routes()
	if err != nil {
		return nil, err
	}
	found, err := routes.Lookup(ctx, []im.UserID{im.UserID(r.UserId)})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(found, func(a, b store.Route) int { return cmp.Compare(a.Epoch, b.Epoch) })
	out := &adminv1.ListDevicesResponse{}
	for _, x := range found {
		out.Devices = append(out.Devices, &adminv1.Device{SessionId: string(x.Session), LoginId: string(x.Login), DeviceId: string(x.Device),
			Class: string(x.Class), NodeId: string(x.Node), BootId: x.Boot, RouteEpoch: x.Epoch, SinceMs: x.Since.UnixMilli()})
	}
	return out, nil
}

// ListPresence tells who is online at this moment.
func (d devices) ListPresence(ctx context.Context, r *adminv1.ListPresenceRequest) (*adminv1.ListPresenceResponse, error) {
	if len(r.UserIds) > presence.MaxRead {
		return nil, badRequest("at most 200 users are asked for at once")
	}
	for _, u := range r.UserIds {
		if err := checkUser(u); err != nil {
			return nil, err
		}
	}
	routes, err := d.a.Routes()
	if err != nil {
		return nil, err
	}
	found, err := presence.Read(ctx, routes, d.a.Directory, r.UserIds)
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListPresenceResponse{}
	for _, p := range found {
		out.Users = append(out.Users, &adminv1.Presence{UserId: p.UserId, Online: p.Online, LastSeenMs: p.LastSeenMs, Classes: p.Classes})
	}
	return out, nil
}

// EndLogins ends one login of a user, or all.
func (d devices) EndLogins(ctx context.Context, r *adminv1.EndLoginsRequest) (*adminv1.EndLoginsResponse, error) {
	if err := checkUser(r.UserId); err != nil {
		return nil, err
	}
	switch im.ReasonByName(r.Reason) {
	case clientv1.Reason_REASON_KICKED, clientv1.Reason_REASON_REVOKED:
	default:
		return nil, badRequest("the reason is neither kicked nor revoked")
	}
	done, err := d.a.Directory.Revoke(ctx, &v1.RevokeRequest{UserId: r.UserId, LoginId: r.LoginId, Reason: r.Reason})
	if err != nil {
		return nil, err
	}
	return &adminv1.EndLoginsResponse{Ended: done.Ended, NotTold: done.NotTold}, nil
}

func checkUser(id string) error {
	if !protocol.ValidID(id) {
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, "admin", "the user id is malformed")
	}
	return nil
}
