package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

const (
	defaultTTL = time.Hour
	mostTTL    = 24 * time.Hour
)

// tokens is the TokenService.
type tokens struct{ a *API }

// Mint signs a token for a user, who comes to exist by it.
func (s tokens) Mint(ctx context.Context, r *imdv1.MintRequest) (*imdv1.MintResponse, error) {
	claims, err := s.claims(r)
	if err != nil {
		return nil, err
	}
	keys := s.a.Keys()
	if len(keys) == 0 {
		return nil, im.Errorf(clientv1.Reason_REASON_UNSUPPORTED, "api.Mint", "this server has no key to sign tokens with")
	}
	if err := s.a.admit(ctx, claims); err != nil {
		if im.Info(im.ReasonOf(err)).CloseCode != 0 && !im.Retryable(err) {
			return nil, forbidden("the user is disabled, or the login was revoked: the token would be refused")
		}
		return nil, err
	}
	token, err := auth.Mint(keys[0], claims, s.a.Verifier.Audience())
	if err != nil {
		return nil, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: "api.Mint", Err: err}
	}
	return &imdv1.MintResponse{Token: token, LoginId: string(claims.Login), ExpireMs: claims.Expires.UnixMilli()}, nil
}

// claims checks what a token is asked to say.
func (s tokens) claims(r *imdv1.MintRequest) (auth.Claims, error) {
	most := min(mostTTL, s.a.Verifier.MaxLife())
	ttl := time.Duration(r.TtlSeconds) * time.Second
	if r.TtlSeconds == 0 {
		ttl = min(defaultTTL, most)
	}
	if r.TtlSeconds < 0 || r.TtlSeconds > int64(most/time.Second) {
		return auth.Claims{}, badRequest("ttl_seconds is not within 1 and %d", int64(most/time.Second))
	}
	now := s.a.Now().Truncate(time.Millisecond)
	c := auth.Claims{
		User: im.UserID(r.UserId), Login: im.LoginID(r.LoginId), Device: im.DeviceID(r.DeviceId), Class: im.Class(r.Class),
		Issuer: s.a.Verifier.Issuer(), IssuedAt: now, Expires: now.Add(ttl),
	}
	if c.Login == "" {
		c.Login = im.LoginID(uuid.NewString())
	}
	errs := []error{checkID("user_id", r.UserId), checkID("login_id", string(c.Login))}
	if r.DeviceId != "" {
		errs = append(errs, checkID("device_id", r.DeviceId))
	}
	if c.Class != "" && !c.Class.Valid() {
		errs = append(errs, badRequest("class is none of phone, tablet, web, desktop, bot"))
	}
	return c, first(errs...)
}

// Revoke ends one login, or all logins a user has at this moment.
func (s tokens) Revoke(ctx context.Context, r *imdv1.RevokeRequest) (*imdv1.RevokeResponse, error) {
	if err := s.a.endLogins(ctx, r.UserId, r.LoginId, clientv1.Reason_REASON_REVOKED); err != nil {
		return nil, err
	}
	return &imdv1.RevokeResponse{}, nil
}

// endLogins ends one login, or all if none is named.
func (a *API) endLogins(ctx context.Context, user, login string, why clientv1.Reason) error {
	if err := checkID("user_id", user); err != nil {
		return err
	}
	if login != "" {
		if err := checkID("login_id", login); err != nil {
			return err
		}
	}
	// No token issued so far lives longer than this.
	until := a.Now().Add(a.Verifier.MaxLife() + a.Verifier.Leeway()).UnixMilli()
	_, err := a.Directory.Revoke(ctx, &v1.RevokeRequest{UserId: user, LoginId: login, Reason: im.ReasonName(why), UntilMs: until})
	return err
}
