package sim

import (
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Times and bounds of push.
const (
	deliverTimeout = time.Second
	lookupPause    = 50 * time.Millisecond
	outlets        = 4 // calls at once to one gateway; a conversation keeps to one
)

// route is where a session is.
type route struct {
	user    im.UserID
	device  string
	session string
	gate    *gateway
}

// routes is the route store.
type routes struct {
	process
	all []route
}

// claim takes the place of a session and returns those it supersedes.
func (r *routes) claim(n route) (old []route) {
	r.all = slices.DeleteFunc(r.all, func(o route) bool {
		same := o.device == n.device && o.session != n.session
		if same {
			old = append(old, o)
		}
		return same
	})
	r.all = append(r.all, n)
	return old
}

// release removes a session's own route.
func (r *routes) release(session string) {
	r.all = slices.DeleteFunc(r.all, func(o route) bool { return o.session == session })
}

// pushNode is the push role. The items of a conversation are worked on in the
// order in which they came.
type pushNode struct {
	process
	piles   map[im.ConversationID]*pile
	outlets []*outlet
}

// pile is what waits for one conversation.
type pile struct {
	items []*fanItem
	busy  bool
}

// shipment is one frame for sessions of one gateway.
type shipment struct {
	conv     string
	seq      int64
	entry    *clientv1.Entry // nil = a head
	sessions []string
}

// outlet is what waits for one gateway in one of its calls.
type outlet struct {
	gate    *gateway
	n       int
	waiting []*shipment
	busy    bool
}

func (p *pushNode) start() { p.piles, p.outlets = map[im.ConversationID]*pile{}, nil }

// take queues items.
func (p *pushNode) take(items []*fanItem) {
	for _, it := range items {
		b := p.piles[it.conv]
		if b == nil {
			b = &pile{}
			p.piles[it.conv] = b
		}
		b.items = append(b.items, it)
		if !b.busy {
			b.busy = true
			p.work(b)
		}
	}
}

// work takes the items of a pile one by one.
func (p *pushNode) work(b *pile) {
	if len(b.items) == 0 {
		b.busy = false
		return
	}
	it := b.items[0]
	b.items = b.items[1:]
	p.lookup(it, 1, func() { p.work(b) })
}

// lookup finds the sessions of an item, in three tries, and hands it on.
func (p *pushNode) lookup(it *fanItem, try int, then func()) {
	p.later(p.w.between(100*time.Microsecond, 2*time.Millisecond), func() {
		if p.w.chance(p.w.plan.fanLoss / 4) {
			if try == 3 {
				then() // it is lost: clients find it by their cursor
				return
			}
			p.later(time.Duration(try)*lookupPause, func() { p.lookup(it, try+1, then) })
			return
		}
		p.spread(it)
		then()
	})
}

// spread gives each gateway its part of an item.
func (p *pushNode) spread(it *fanItem) {
	c := p.w.store.byID[it.conv]
	for _, g := range p.w.gates {
		var ids []string
		for _, r := range p.w.routes.all {
			member := c.present(r.user) && c.start(r.user) < it.seq || slices.Contains(it.also, r.user)
			if r.gate == g && r.session != it.session && member {
				ids = append(ids, r.session)
			}
		}
		if len(ids) > 0 {
			p.add(g, &shipment{string(it.conv), it.seq, it.entry, ids})
		}
	}
}

func (p *pushNode) add(g *gateway, d *shipment) {
	n := hashOf(d.conv) % outlets
	i := slices.IndexFunc(p.outlets, func(o *outlet) bool { return o.gate == g && o.n == n })
	if i < 0 {
		i = len(p.outlets)
		p.outlets = append(p.outlets, &outlet{gate: g, n: n})
	}
	o := p.outlets[i]
	o.waiting = append(o.waiting, d)
	if !o.busy {
		p.empty(o)
	}
}

// empty makes the next call of an outlet.
func (p *pushNode) empty(o *outlet) {
	ds := o.waiting
	o.waiting, o.busy = nil, len(ds) > 0
	if o.busy {
		p.deliver(o, ds, 0)
	}
}

func (p *pushNode) deliver(o *outlet, ds []*shipment, attempt int) {
	p.w.call(call{
		from: &p.process, to: &o.gate.process, loss: p.w.plan.fanLoss, timeout: deliverTimeout,
		serve: func(reply func(any)) {
			o.gate.deliver(ds)
			reply(nil)
		},
		done: func(_ any, ok bool) {
			if !ok && attempt == 0 {
				p.later(lookupPause, func() { p.deliver(o, ds, 1) })
				return
			}
			p.empty(o)
		},
	})
}
