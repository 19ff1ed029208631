package cmd

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/bench"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// benchSide is what a load test does beside its sockets: groups, rate limits,
// and reading logs as the system.
type benchSide struct {
	f    *benchFlags
	cred *credential
	undo []func(context.Context)
}

// close undoes what was changed on the server.
func (s *benchSide) close(ctx context.Context) {
	for _, undo := range slices.Backward(s.undo) {
		call, cancel := s.f.app.bounded(context.WithoutCancel(ctx))
		undo(call)
		cancel()
	}
}

func (s *benchSide) say(format string, args ...any) {
	fmt.Fprintf(s.f.app.errOut, format+"\n", args...)
}

// admin is a client of the ops listener: the one named, or the one of the data
// folder. With only --server there is none.
func (s *benchSide) admin() (*connect.Client, error) {
	ops := *s.f.serverFlags
	ops.server, ops.tokenFile = s.f.opsServer, s.f.opsTokenFile
	if ops.server == "" && s.f.server != "" {
		return nil, fmt.Errorf("name its ops listener with --ops-server")
	}
	if ops.server != "" && ops.tokenFile == "" {
		key, err := ops.adminKey()
		if err != nil {
			return nil, err
		}
		hc := &http.Client{Transport: bearer{key, transport()}}
		return connect.NewClient(connecthttp.NewTransport(hc, ops.server)), nil
	}
	return ops.admin()
}

// liftLimits switches the server's rate limits off until close. Without access
// to the ops listener they stay, and it says so.
func (s *benchSide) liftLimits(ctx context.Context) bool {
	client, err := s.admin()
	if err == nil {
		limits := adminv1connect.NewLimitServiceClient(client)
		call, cancel := s.f.app.bounded(ctx)
		_, err = limits.SetLimits(call, &adminv1.SetLimitsRequest{Off: true})
		cancel()
		if err == nil {
			s.say("rate limits are off while bench runs")
			s.f.o.Returned = func(ctx context.Context) { // a process that was restarted has them on
				call, cancel := s.f.app.bounded(ctx)
				defer cancel()
				_, _ = limits.SetLimits(call, &adminv1.SetLimitsRequest{Off: true}) // or the result shows what was refused
			}
			s.undo = append(s.undo, func(ctx context.Context) {
				if _, err := limits.SetLimits(ctx, &adminv1.SetLimitsRequest{}); err != nil {
					s.say("the rate limits could not be switched on again: %v", err)
				}
			})
			return true
		}
	}
	s.say("the server's rate limits hold: %v", err)
	return false
}

// awayAtMost is for how long a call is made again while the server is busy or out of
// reach.
const awayAtMost = 20 * time.Second

// whileAway makes a call again and again while the server is busy or out of reach, but
// not for long: a run is not to be lost because a node was held up for a moment.
func whileAway(ctx context.Context, call func() error) error {
	for end := time.Now().Add(awayAtMost); ; {
		err := call()
		if connect.CodeOf(err) != connect.CodeUnavailable || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// group makes a group of any size, some hundred members a call.
func (s *benchSide) group(ctx context.Context, owner string, members []string) (string, error) {
	api, err := s.cred.conversations(ctx, owner)
	if err != nil {
		return "", err
	}
	first := members[:min(len(members), protocol.MaxAddMembers)]
	create := &imdv1.CreateRequest{RequestId: imd.NewID(), Name: "bench", UserIds: first}
	var made *imdv1.ChangeResponse
	if err := whileAway(ctx, func() (err error) { made, err = api.Create(ctx, create); return err }); err != nil {
		return "", err
	}
	for rest := range slices.Chunk(members[len(first):], protocol.MaxAddMembers) {
		add := &imdv1.AddMembersRequest{ConversationId: made.ConversationId, RequestId: imd.NewID(), UserIds: rest}
		if err := whileAway(ctx, func() error { _, err := api.AddMembers(ctx, add); return err }); err != nil {
			return "", err
		}
	}
	return made.ConversationId, nil
}

// drain tells the node of --node to stop in order.
func (s *benchSide) drain(ctx context.Context) error {
	client, err := s.admin()
	if err != nil {
		return err
	}
	call, cancel := s.f.app.bounded(ctx)
	defer cancel()
	_, err = adminv1connect.NewNodeServiceClient(client).Drain(call, &adminv1.DrainRequest{NodeId: s.f.node, Reason: "bench"})
	return err
}

// systemLog reads logs with an API key: the one of --token-file, or one that is
// made for the run and revoked after it.
func (s *benchSide) systemLog(ctx context.Context) (bench.ReadLog, error) {
	key := s.cred.bearer
	if !auth.IsAPIKey(key) {
		made, err := s.makeKey(ctx)
		if err != nil {
			return nil, newFailure(exitNotAllowed, "no_key", "--record reads the logs as the system and wants an API key: "+err.Error(), "name a file with one with --token-file")
		}
		key = made
	}
	hc := &http.Client{Transport: bearer{key, transport()}}
	api := imdv1connect.NewMessageServiceClient(connect.NewClient(connecthttp.NewTransport(hc, s.cred.base)))
	return func(ctx context.Context, conv string, after int64, limit int) (*clientv1.Page, error) {
		var page *clientv1.Page
		err := whileAway(ctx, func() error {
			ctx, cancel := s.f.app.bounded(ctx)
			defer cancel()
			res, err := api.History(ctx, &imdv1.HistoryRequest{ConversationId: conv, AfterSeq: after, Limit: int32(limit)})
			page = res.GetPage()
			return err
		})
		return page, err
	}, nil
}

func (s *benchSide) makeKey(ctx context.Context) (string, error) {
	client, err := s.admin()
	if err != nil {
		return "", err
	}
	keys := adminv1connect.NewKeyServiceClient(client)
	call, cancel := s.f.app.bounded(ctx)
	defer cancel()
	made, err := keys.CreateKey(call, &adminv1.CreateKeyRequest{Name: "bench"})
	if err != nil {
		return "", err
	}
	s.undo = append(s.undo, func(ctx context.Context) {
		if _, err := keys.RevokeKey(ctx, &adminv1.RevokeKeyRequest{KeyId: made.Key.GetKeyId()}); err != nil {
			s.say("the API key %s could not be revoked: %v", made.Key.GetKeyId(), err)
		}
	})
	return made.Secret, nil
}

// version is the server's, as far as it is known.
func (s *benchSide) version() string {
	p, err := s.f.local()
	if err != nil {
		return ""
	}
	return p.Version
}
