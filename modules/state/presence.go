package state

import (
	"context"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// Visible tells whom of others a user may see; see DirectoryService.
func (d Directory) Visible(ctx context.Context, req *v1.VisibleRequest) (*v1.VisibleResponse, error) {
	const op = "directory.Visible"
	if err := checkUser(op, req.UserId); err != nil {
		return nil, err
	}
	others, err := userList(op, req.UserIds)
	if err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	found, err := c.store.Visible(ctx, im.UserID(req.UserId), others)
	if err != nil {
		return nil, storeErr(op, err)
	}
	res := &v1.VisibleResponse{}
	for _, u := range found {
		res.UserIds = append(res.UserIds, string(u))
	}
	return res, nil
}

// LastSeen tells when users were last seen; see DirectoryService.
func (d Directory) LastSeen(ctx context.Context, req *v1.LastSeenRequest) (*v1.LastSeenResponse, error) {
	const op = "directory.LastSeen"
	users, err := userList(op, req.UserIds)
	if err != nil {
		return nil, err
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	found, err := c.store.Seen(ctx, users)
	if err != nil {
		return nil, storeErr(op, err)
	}
	res := &v1.LastSeenResponse{}
	for _, x := range found {
		res.Users = append(res.Users, &v1.LastSeen{UserId: string(x.User), AtMs: x.At.UnixMilli()})
	}
	return res, nil
}

// userList checks the users that a call names.
func userList(op string, ids []string) ([]im.UserID, error) {
	if len(ids) > store.MaxSeen {
		return nil, badRequest(op, "at most 1,000 users are asked for at once")
	}
	out := make([]im.UserID, len(ids))
	for i, id := range ids {
		if err := checkUser(op, id); err != nil {
			return nil, err
		}
		out[i] = im.UserID(id)
	}
	return out, nil
}
