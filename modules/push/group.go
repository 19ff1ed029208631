package push

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// membersPerGateway is how many members a group has at least, for each gateway,
// that is given to all gateways: below it, telling them costs more than looking
// for sessions.
const membersPerGateway = 50

// gateways are the nodes that may hold sessions.
func (p *Push) gateways() (nodes []im.NodeID) {
	if p.View == nil {
		return nil
	}
	self := p.Here
	for _, n := range p.View().Nodes {
		if n.Has("gateway") {
			nodes = append(nodes, n.ID)
			self = self && n.ID != p.Node
		}
	}
	if self {
		nodes = append(nodes, p.Node)
	}
	return nodes
}

// handToGroup gives every gateway the items of a large group, or now and then a
// hint that there are some.
func (p *Push) handToGroup(ctx context.Context, items []*v1.FanoutItem, to target) {
	change := changeOf(items[0])
	if last := items[len(items)-1]; seqOf(last) > 0 && !change.Change {
		pulled, h := p.pulls.note(time.Now(), p.tuned.Get().pull, hint{items[0].ConversationId, seqOf(last), items[0].MemberVersion}, to, len(items))
		if h != nil {
			p.tell(ctx, *h)
		}
		if pulled {
			p.m.pulled.Add(float64(len(items)))
			return
		}
	}
	p.members.grew(items[0].ConversationId, len(change.AddedUserIds)-len(change.RemovedUserIds))
	for i, d := range p.bundles(items) {
		if d.Audience = change; i > 0 {
			d.Audience = &v1.Audience{MemberVersion: change.MemberVersion}
		}
		for _, node := range to.nodes {
			p.senders.add(ctx, node, newParcel(d, nil, nil))
		}
	}
}

// changeOf is the members of a group as of an item, with what it changes.
func changeOf(it *v1.FanoutItem) *v1.Audience {
	a := &v1.Audience{MemberVersion: it.MemberVersion, RemovedUserIds: it.AlsoUserIds}
	if c := it.GetEntry().GetMemberChange(); c != nil {
		a.Change = true
		if c.Action == clientv1.MemberAction_MEMBER_ACTION_ADDED {
			a.AddedUserIds, a.Start = c.UserIds, c.Start
		}
	}
	return a
}

// tell hints to a large group that it has entries.
func (p *Push) tell(ctx context.Context, h hint) {
	it := &v1.FanoutItem{ConversationId: h.conv, MemberVersion: h.version,
		What: &v1.FanoutItem_Head{Head: &clientv1.Head{ConversationId: h.conv, Seq: h.seq}}}
	p.m.hints.Inc()
	for _, d := range p.bundles([]*v1.FanoutItem{it}) {
		d.Audience = &v1.Audience{MemberVersion: h.version}
		for _, node := range p.gateways() {
			p.senders.add(ctx, node, newParcel(d, nil, nil))
		}
	}
}
