package sim

import (
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// final looks at everything once the world has settled.
func (j *judge) final() {
	if s := j.unsettled(); s != "" {
		j.w.fail("%s, %v after the last fault", s, j.w.now-j.w.plan.span)
	}
	for _, g := range j.w.gates {
		for _, s := range g.sessions {
			if n := s.queue.Unanswered(); n > 0 {
				j.w.fail("%d sends have no answer at %s", n, s.id)
			}
		}
	}
	for _, c := range j.w.store.convs {
		j.log(c)
	}
	j.messages()
	for _, d := range j.w.devices {
		for _, v := range d.views {
			j.timeline(d, v)
		}
	}
}

// log looks at what the store has: each message once, and each entry behind the
// one it names.
func (j *judge) log(c *modelConv) {
	ids, keys, last := map[int64]bool{}, map[string]bool{}, int64(0)
	for _, e := range c.log {
		key := e.Sender + "/" + e.ClientMessageId
		switch {
		case e.Seq <= last || e.PrevSeq != last:
			j.w.fail("seq %d of %s follows %d and names %d", e.Seq, c.id, last, e.PrevSeq)
		case ids[e.MessageId]:
			j.w.fail("the id of seq %d of %s is in the log twice", e.Seq, c.id)
		case keys[key]:
			j.w.fail("%s is in %s twice", e.ClientMessageId, c.id)
		}
		last, ids[e.MessageId], keys[key] = e.Seq, true, true
	}
}

// messages looks for what became of each message, and at the order of those of
// one device in one conversation.
func (j *judge) messages() {
	type line struct {
		dev  *device
		conv string
	}
	last := map[line]*message{}
	for _, m := range j.sends {
		e := j.stored(m)
		switch {
		case m.void || m.withdrawn || m.failed && (e == nil || j.cameBack(m)):
			continue
		case m.failed:
			j.w.fail("%s was refused for good and is stored", m.id)
		case e == nil:
			j.w.fail("%s is lost", m.id)
		case m.ok != nil && m.ok.MessageId != e.MessageId:
			j.w.fail("%s has another id than it was acknowledged with", m.id)
		}
		l := line{m.dev, m.conv}
		if b := last[l]; b != nil && j.stored(b).Seq > e.Seq && !j.cameBack(m) {
			j.w.fail("%s wrote %s before %s, and they are seq %d and %d of %s", m.dev, b.id, m.id, j.stored(b).Seq, e.Seq, m.conv)
		}
		last[l] = m
	}
}

// timeline scrolls back to the beginning and compares what the device has with
// the log.
func (j *judge) timeline(d *device, v *view) {
	c := j.w.store.byID[im.ConversationID(v.id)]
	if c.members[d.user] == nil {
		j.w.fail("%s knows %s, which is not for %s", d, v.id, d.user)
	}
	if !v.tl.Known() {
		return
	}
	j.scroll(d, v)
	j.w.tracef("%s %s older %v gaps %v have %d start %d from %d", d, v.id, v.tl.Older(), v.tl.Gaps(), v.tl.Have(), v.tl.Start(), v.tl.From())
	var want, got []int64
	for _, e := range c.log {
		if e.Seq > v.tl.Start() && c.sees(d.user, e.Seq) {
			want = append(want, e.Seq)
		}
	}
	for _, it := range v.tl.Items() {
		switch m := j.byID[it.Entry.ClientMessageId]; {
		case it.State == timeline.Sent:
			if e := c.at(it.Entry.Seq); e == nil || e.MessageId != it.Entry.MessageId {
				j.w.fail("seq %d of %s on %s is not the log's", it.Entry.Seq, v.id, d)
			}
			got = append(got, it.Entry.Seq)
		case it.State == timeline.Pending:
			j.w.fail("%s is pending on %s for ever", it.Entry.ClientMessageId, d)
		case !m.failed:
			j.w.fail("%s is shown as failed on %s", m.id, d)
		}
	}
	if !slices.Equal(want, got) {
		j.w.fail("%s of %s shows %v of %s, the log has %v", d, d.user, got, v.id, want)
	}
}

// scroll loads what the device has left out.
func (j *judge) scroll(d *device, v *view) {
	for range 10_000 {
		var req timeline.Request
		switch gaps := v.tl.Gaps(); {
		case len(gaps) > 0:
			g := gaps[len(gaps)-1]
			req = timeline.Request{After: g.From - 1, Before: g.To + 1, Backward: true}
		case v.tl.Older():
			req = v.tl.OlderRequest()
		default:
			return
		}
		j.w.tracef("%s scrolls %+v older %v gaps %v have %d start %d", d, req, v.tl.Older(), v.tl.Gaps(), v.tl.Have(), v.tl.Start())
		p, _ := j.w.store.page(d.user, im.ConversationID(v.id), &clientv1.History{
			AfterSeq: req.After, BeforeSeq: req.Before, Backward: true, Limit: 50,
		})
		v.tl.Page(j.w.ms(), req, p)
	}
	j.w.fail("%s scrolls in %s without end", d, v.id)
}
