package api

import (
	"context"
	"slices"
	"strings"

	"connectrpc.com/connect/v2"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	conn "github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// policy says who may call a method.
type policy struct {
	scope    string // an API key needs it
	keysOnly bool   // users' tokens are refused
	asUser   bool   // a user must act: a key has to name one
}

// policies has every method; New fails if one is missing.
var policies = map[string]policy{
	conn.ConversationServiceCreateProcedure:            {scope: auth.ScopeConversations},
	conn.ConversationServiceRenameProcedure:            {scope: auth.ScopeConversations},
	conn.ConversationServiceCloseProcedure:             {scope: auth.ScopeConversations},
	conn.ConversationServiceAddMembersProcedure:        {scope: auth.ScopeConversations},
	conn.ConversationServiceRemoveMembersProcedure:     {scope: auth.ScopeConversations},
	conn.ConversationServiceSetRoleProcedure:           {scope: auth.ScopeConversations},
	conn.ConversationServiceLeaveProcedure:             {scope: auth.ScopeConversations, asUser: true},
	conn.ConversationServiceListMembersProcedure:       {scope: auth.ScopeConversations},
	conn.ConversationServiceClearHistoryProcedure:      {scope: auth.ScopeConversations, asUser: true},
	conn.ConversationServiceMuteProcedure:              {scope: auth.ScopeConversations, asUser: true},
	conn.ConversationServiceUnmuteProcedure:            {scope: auth.ScopeConversations, asUser: true},
	conn.ConversationServiceListMutesProcedure:         {scope: auth.ScopeConversations, asUser: true},
	conn.ConversationServiceListProcedure:              {scope: auth.ScopeConversations, asUser: true},
	conn.MessageServiceSendProcedure:                   {scope: auth.ScopeMessages},
	conn.MessageServiceHistoryProcedure:                {scope: auth.ScopeMessages},
	conn.MessageServiceScheduleProcedure:               {scope: auth.ScopeMessages},
	conn.MessageServiceListScheduledProcedure:          {scope: auth.ScopeMessages},
	conn.MessageServiceCancelScheduledProcedure:        {scope: auth.ScopeMessages},
	conn.UserServiceGetProcedure:                       {scope: auth.ScopeUsers, keysOnly: true},
	conn.UserServiceSetDisabledProcedure:               {scope: auth.ScopeUsers, keysOnly: true},
	conn.UserServiceBlockProcedure:                     {scope: auth.ScopeUsers, asUser: true},
	conn.UserServiceUnblockProcedure:                   {scope: auth.ScopeUsers, asUser: true},
	conn.UserServiceDevicesProcedure:                   {scope: auth.ScopeUsers, keysOnly: true},
	conn.UserServiceKickProcedure:                      {scope: auth.ScopeUsers, keysOnly: true},
	conn.PresenceServiceGetProcedure:                   {scope: auth.ScopeUsers},
	conn.TokenServiceMintProcedure:                     {scope: auth.ScopeTokens, keysOnly: true},
	conn.TokenServiceRevokeProcedure:                   {scope: auth.ScopeTokens, keysOnly: true},
	conn.AnnouncementServiceAnnounceProcedure:          {scope: auth.ScopeMessages, keysOnly: true},
	conn.AnnouncementServiceWithdrawProcedure:          {scope: auth.ScopeMessages, keysOnly: true},
	conn.AnnouncementServiceListAnnouncementsProcedure: {scope: auth.ScopeMessages, keysOnly: true},
}

// call is what is known of a call's maker.
type call struct {
	user  im.UserID // of the token; "" = an API key
	actor im.UserID // who acts; "" = the system; set when the request is read
	rule  policy
}

type callKey struct{}

// actor is who acts in this call; "" = the system.
func actor(ctx context.Context) im.UserID { return ctx.Value(callKey{}).(*call).actor }

// authorise lets a call in if its credential is good and its policy allows it,
// before the body is read.
func (a *API) authorise(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		rule, ok := policies[spec.Procedure]
		if !ok {
			return im.Errorf(clientv1.Reason_REASON_UNSUPPORTED, op, "there is no method %s; all are in /v1/openapi.json", spec.Procedure)
		}
		c := &call{rule: rule}
		if err := a.identify(ctx, c); err != nil {
			return err
		}
		return next(context.WithValue(ctx, callKey{}, c), spec, actingStream{stream, c})
	}
}

// identify verifies the bearer credential and fills in who calls.
func (a *API) identify(ctx context.Context, c *call) error {
	bearer, err := bearer(ctx)
	if err != nil {
		return err
	}
	if auth.IsAPIKey(bearer) {
		return a.identifyKey(ctx, c, bearer)
	}
	return a.identifyUser(ctx, c, bearer)
}

func (a *API) identifyUser(ctx context.Context, c *call, token string) error {
	claims, err := a.Verifier.Verify(token, a.Now())
	if err != nil {
		return err
	}
	if c.rule.keysOnly {
		return forbidden("this call needs an API key")
	}
	if err := a.admit(ctx, claims); err != nil {
		return err
	}
	c.user = claims.User
	return nil
}

// admit asks whether the login may do anything now.
func (a *API) admit(ctx context.Context, c auth.Claims) error {
	issued := int64(0)
	if !c.IssuedAt.IsZero() {
		issued = c.IssuedAt.UnixMilli()
	}
	res, err := a.Directory.Admit(ctx, &v1.AdmitRequest{UserId: string(c.User), LoginId: string(c.Login), IssuedMs: issued})
	if err != nil {
		return err
	}
	if res.RefusedReason == "" {
		return nil
	}
	reason := im.ReasonByName(res.RefusedReason)
	if im.Info(reason).Code != connect.CodeUnauthenticated.String() {
		reason = clientv1.Reason_REASON_BAD_TOKEN
	}
	return im.Errorf(reason, "api.admit", "%s", im.Info(reason).Meaning)
}

func (a *API) identifyKey(ctx context.Context, c *call, text string) error {
	key, err := auth.ParseAPIKey(text)
	if err != nil {
		return err
	}
	stored, err := a.keys.find(ctx, key.ID)
	if err != nil {
		return err
	}
	switch {
	case stored == nil || !key.Matches(stored.SecretHash):
		return badToken("the API key is not known here")
	case stored.RevokedMs != 0:
		return badToken("the API key was revoked")
	case !slices.Contains(stored.Scopes, c.rule.scope):
		return forbidden("the API key lacks the scope " + c.rule.scope)
	}
	return nil
}

// bearer reads the credential of the Authorization header.
func bearer(ctx context.Context) (string, error) {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return "", badToken("there is no Authorization header")
	}
	values := info.RequestHeader().Values("Authorization")
	if len(values) != 1 {
		return "", badToken("one header is needed: Authorization: Bearer <token or API key>")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", badToken("the Authorization header is not of the form: Bearer <token or API key>")
	}
	return token, nil
}

// actingStream settles who acts as soon as the request is read.
type actingStream struct {
	connect.ServerStream
	c *call
}

// Receive reads the request and checks its as_user.
func (s actingStream) Receive(msg any) error {
	if err := s.ServerStream.Receive(msg); err != nil {
		return err
	}
	return s.c.resolve(msg)
}

// resolve settles who acts: the token's user whatever the request says, or the
// user that a key's request names.
func (c *call) resolve(msg any) error {
	as := ""
	if m, ok := msg.(interface{ GetAsUser() string }); ok {
		as = m.GetAsUser()
	}
	switch {
	case as != "" && !protocol.ValidID(as):
		return invalidID("as_user")
	case c.user != "" && as != "" && as != string(c.user):
		return forbidden("a user's token acts for that user only")
	case c.user != "":
		c.actor = c.user
	case as == "" && c.rule.asUser:
		return badRequest("as_user is needed: the system cannot do this")
	default:
		c.actor = im.UserID(as)
	}
	return nil
}
