package peer

import (
	"context"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/ring"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// The rows of the table, found once.
var (
	stateSubmit, stateChange, stateMark                   = method("state.Submit"), method("state.Change"), method("state.Mark")
	stateSync, stateHistory, stateMembers                 = method("state.Sync"), method("state.History"), method("state.Members")
	stateSyncMany, directoryAdmitMany                     = method("state.SyncMany"), method("directory.AdmitMany")
	stateHeads, stateClear                                = method("state.Heads"), method("state.ClearHistory")
	stateHealth                                           = method("state.Health")
	stateSchedule, stateListScheduled                     = method("state.Schedule"), method("state.ListScheduled")
	stateCancelScheduled                                  = method("state.CancelScheduled")
	directoryAnnounce, directoryWithdraw                  = method("directory.Announce"), method("directory.Withdraw")
	directoryListAnnouncements, gatewayProclaim           = method("directory.ListAnnouncements"), method("gateway.Proclaim")
	directoryUser, directorySetUser                       = method("directory.User"), method("directory.SetUser")
	directorySetMute, directoryMutes                      = method("directory.SetMute"), method("directory.Mutes")
	directorySetBlock, directoryAdmit                     = method("directory.SetBlock"), method("directory.Admit")
	directoryRevoke                                       = method("directory.Revoke")
	directoryProve                                        = method("directory.Prove")
	directoryPutKey, directoryKeys                        = method("directory.PutKey"), method("directory.Keys")
	directoryVisible, directoryLastSeen                   = method("directory.Visible"), method("directory.LastSeen")
	gatewayFollow, gatewayShow                            = method("gateway.Follow"), method("gateway.Show")
	pushFanout, gatewayDeliver, gatewayKick, gatewayProbe = method("push.Fanout"), method("gateway.Deliver"), method("gateway.Kick"), method("gateway.Probe")
	peerCheck                                             = method("peer.Check")
)

// shardKeys are the keys of all shards on the ring.
var shardKeys = func() (keys [ring.Shards]string) {
	for i := range keys {
		keys[i] = ring.ShardKey(i)
	}
	return keys
}()

// shardKey is the key by which a conversation is placed on the ring of the state
// nodes: that of its shard, which is owned as a whole. "" = of no conversation.
func shardKey(conv string) string {
	if conv == "" {
		return ""
	}
	return shardKeys[ring.Shard(conv)]
}

type stateHandler = internalv1connect.StateServiceHandler

type stateClient struct{ s *Set }

func (c stateClient) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	key := ""
	if len(r.Runs) > 0 {
		key = shardKey(r.Runs[0].GetConversationId())
	}
	return invoke(ctx, c.s, &c.s.state, stateSubmit, key, stateHandler.Submit, r)
}

func (c stateClient) Change(ctx context.Context, r *v1.ChangeRequest) (*v1.ChangeResponse, error) {
	key := shardKey(r.ConversationId)
	if key == "" {
		key = r.RequestId // a new group: a repeat must come to the same place
	}
	return invoke(ctx, c.s, &c.s.state, stateChange, key, stateHandler.Change, r)
}

// Mark goes to each node with the marks of its conversations.
func (c stateClient) Mark(ctx context.Context, r *v1.MarkRequest) (*v1.MarkResponse, error) {
	results, err := scatter(r.Marks, func(m *v1.Mark) im.NodeID { return c.s.state.group.homeOf(shardKey(m.GetConversationId())) },
		func(part []*v1.Mark) ([]*v1.MarkResult, error) {
			key := ""
			if len(part) > 0 {
				key = shardKey(part[0].GetConversationId())
			}
			res, err := invoke(ctx, c.s, &c.s.state, stateMark, key, stateHandler.Mark, &v1.MarkRequest{Marks: part})
			return res.GetResults(), err
		}, func(e *clientv1.Error) *v1.MarkResult { return &v1.MarkResult{Error: e} })
	if err != nil {
		return nil, err
	}
	return &v1.MarkResponse{Results: results}, nil
}

func (c stateClient) Sync(ctx context.Context, r *v1.SyncRequest) (*v1.SyncResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateSync, r.UserId, stateHandler.Sync, r)
}

// SyncMany goes to each node with the queries of its users.
func (c stateClient) SyncMany(ctx context.Context, r *v1.SyncManyRequest) (*v1.SyncManyResponse, error) {
	answers, err := scatter(r.Requests, func(q *v1.SyncRequest) im.NodeID { return c.s.state.group.homeOf(q.GetUserId()) },
		func(part []*v1.SyncRequest) ([]*v1.SyncAnswer, error) {
			key := ""
			if len(part) > 0 {
				key = part[0].GetUserId()
			}
			res, err := invoke(ctx, c.s, &c.s.state, stateSyncMany, key, stateHandler.SyncMany, &v1.SyncManyRequest{Requests: part})
			return res.GetAnswers(), err
		}, func(e *clientv1.Error) *v1.SyncAnswer { return &v1.SyncAnswer{Error: e} })
	if err != nil {
		return nil, err
	}
	return &v1.SyncManyResponse{Answers: answers}, nil
}

func (c stateClient) History(ctx context.Context, r *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateHistory, shardKey(r.GetHistory().GetConversationId()), stateHandler.History, r)
}

func (c stateClient) Members(ctx context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateMembers, shardKey(r.ConversationId), stateHandler.Members, r)
}

func (c stateClient) Heads(ctx context.Context, r *v1.HeadsRequest) (*v1.HeadsResponse, error) {
	key := ""
	if len(r.UserIds) > 0 {
		key = r.UserIds[0]
	}
	return invoke(ctx, c.s, &c.s.state, stateHeads, key, stateHandler.Heads, r)
}

func (c stateClient) ClearHistory(ctx context.Context, r *v1.ClearHistoryRequest) (*v1.ClearHistoryResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateClear, shardKey(r.ConversationId), stateHandler.ClearHistory, r)
}

func (c stateClient) Schedule(ctx context.Context, r *v1.ScheduleRequest) (*v1.ScheduleResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateSchedule, shardKey(r.ConversationId), stateHandler.Schedule, r)
}

func (c stateClient) ListScheduled(ctx context.Context, r *v1.ListScheduledRequest) (*v1.ListScheduledResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateListScheduled, r.UserId, stateHandler.ListScheduled, r)
}

func (c stateClient) CancelScheduled(ctx context.Context, r *v1.CancelScheduledRequest) (*v1.CancelScheduledResponse, error) {
	return invoke(ctx, c.s, &c.s.state, stateCancelScheduled, r.UserId, stateHandler.CancelScheduled, r)
}

// Health asks the state role of this process.
func (c stateClient) Health(ctx context.Context, r *v1.HealthRequest) (*v1.HealthResponse, error) {
	return here(ctx, c.s, &c.s.state, stateHealth, stateHandler.Health, r)
}

type directoryHandler = internalv1connect.DirectoryServiceHandler

type directoryClient struct{ s *Set }

func (c directoryClient) User(ctx context.Context, r *v1.UserRequest) (*v1.UserResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryUser, r.UserId, directoryHandler.User, r)
}

func (c directoryClient) SetUser(ctx context.Context, r *v1.SetUserRequest) (*v1.SetUserResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directorySetUser, r.UserId, directoryHandler.SetUser, r)
}

func (c directoryClient) SetBlock(ctx context.Context, r *v1.SetBlockRequest) (*v1.SetBlockResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directorySetBlock, r.UserId, directoryHandler.SetBlock, r)
}

func (c directoryClient) SetMute(ctx context.Context, r *v1.SetMuteRequest) (*v1.SetMuteResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directorySetMute, "", directoryHandler.SetMute, r)
}

func (c directoryClient) Mutes(ctx context.Context, r *v1.MutesRequest) (*v1.MutesResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryMutes, "", directoryHandler.Mutes, r)
}

func (c directoryClient) Admit(ctx context.Context, r *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryAdmit, r.UserId, directoryHandler.Admit, r)
}

// AdmitMany goes to each node with the logins of its users.
func (c directoryClient) AdmitMany(ctx context.Context, r *v1.AdmitManyRequest) (*v1.AdmitManyResponse, error) {
	answers, err := scatter(r.Requests, func(q *v1.AdmitRequest) im.NodeID { return c.s.state.group.homeOf(q.GetUserId()) },
		func(part []*v1.AdmitRequest) ([]*v1.AdmitAnswer, error) {
			key := ""
			if len(part) > 0 {
				key = part[0].GetUserId()
			}
			res, err := invoke(ctx, c.s, &c.s.directory, directoryAdmitMany, key, directoryHandler.AdmitMany, &v1.AdmitManyRequest{Requests: part})
			return res.GetAnswers(), err
		}, func(e *clientv1.Error) *v1.AdmitAnswer { return &v1.AdmitAnswer{Error: e} })
	if err != nil {
		return nil, err
	}
	return &v1.AdmitManyResponse{Answers: answers}, nil
}

func (c directoryClient) Revoke(ctx context.Context, r *v1.RevokeRequest) (*v1.RevokeResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryRevoke, r.UserId, directoryHandler.Revoke, r)
}

func (c directoryClient) Visible(ctx context.Context, r *v1.VisibleRequest) (*v1.VisibleResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryVisible, r.UserId, directoryHandler.Visible, r)
}

func (c directoryClient) LastSeen(ctx context.Context, r *v1.LastSeenRequest) (*v1.LastSeenResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryLastSeen, "", directoryHandler.LastSeen, r)
}

func (c directoryClient) Announce(ctx context.Context, r *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryAnnounce, "", directoryHandler.Announce, r)
}

func (c directoryClient) Withdraw(ctx context.Context, r *v1.WithdrawRequest) (*v1.WithdrawResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryWithdraw, "", directoryHandler.Withdraw, r)
}

func (c directoryClient) ListAnnouncements(ctx context.Context, r *v1.ListAnnouncementsRequest) (*v1.ListAnnouncementsResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryListAnnouncements, "", directoryHandler.ListAnnouncements, r)
}

func (c directoryClient) Prove(ctx context.Context, r *v1.ProveRequest) (*v1.ProveResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryProve, r.UserId, directoryHandler.Prove, r)
}

func (c directoryClient) PutKey(ctx context.Context, r *v1.PutKeyRequest) (*v1.PutKeyResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryPutKey, r.GetKey().GetKeyId(), directoryHandler.PutKey, r)
}

func (c directoryClient) Keys(ctx context.Context, r *v1.KeysRequest) (*v1.KeysResponse, error) {
	return invoke(ctx, c.s, &c.s.directory, directoryKeys, r.KeyId, directoryHandler.Keys, r)
}

type pushClient struct{ s *Set }

func (c pushClient) Fanout(ctx context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	key := ""
	if len(r.Items) > 0 {
		key = r.Items[0].GetConversationId()
	}
	return invoke(ctx, c.s, &c.s.push, pushFanout, key, internalv1connect.PushServiceHandler.Fanout, r)
}

type gatewayClient struct {
	s    *Set
	node im.NodeID
}

func (c gatewayClient) Deliver(ctx context.Context, r *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayDeliver, c.node, internalv1connect.GatewayServiceHandler.Deliver, r)
}

func (c gatewayClient) Probe(ctx context.Context, r *v1.ProbeRequest) (*v1.ProbeResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayProbe, c.node, internalv1connect.GatewayServiceHandler.Probe, r)
}

func (c gatewayClient) Kick(ctx context.Context, r *v1.KickRequest) (*v1.KickResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayKick, c.node, internalv1connect.GatewayServiceHandler.Kick, r)
}

func (c gatewayClient) Follow(ctx context.Context, r *v1.FollowRequest) (*v1.FollowResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayFollow, c.node, internalv1connect.GatewayServiceHandler.Follow, r)
}

func (c gatewayClient) Proclaim(ctx context.Context, r *v1.ProclaimRequest) (*v1.ProclaimResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayProclaim, c.node, internalv1connect.GatewayServiceHandler.Proclaim, r)
}

func (c gatewayClient) Show(ctx context.Context, r *v1.ShowRequest) (*v1.ShowResponse, error) {
	return invokeAt(ctx, c.s, &c.s.gateway, gatewayShow, c.node, internalv1connect.GatewayServiceHandler.Show, r)
}
