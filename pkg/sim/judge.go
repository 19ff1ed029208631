package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// restoreEcho is how long after a restore answers of the former history may
// still arrive.
const restoreEcho = 10 * time.Second

// message is one send as the person who wrote it knows it.
type message struct {
	id, conv  string
	dev       *device
	size      int
	poison    bool
	withdrawn bool
	failed    bool // for good
	void      bool // what was known of it was of a former history
	ok        *clientv1.SendAck
}

// judge watches the promises. It sees the store, which nobody else does.
type judge struct {
	w        *world
	sends    []*message // in order of writing
	byID     map[string]*message
	restores time.Duration // of the last restore; negative = none
}

func newJudge(w *world) *judge {
	return &judge{w: w, byID: map[string]*message{}, restores: -restoreEcho}
}

// name makes an id that is new.
func (w *world) name(prefix string) string {
	w.names++
	return fmt.Sprint(prefix, w.names)
}

// wrote notes a message that a person wrote.
func (j *judge) wrote(d *device, conv string) *message {
	m := &message{id: j.w.name("m"), conv: conv, dev: d, size: 200}
	if j.w.plan.large && j.w.rng.IntN(2) == 0 {
		m.size = protocol.MaxContent - j.w.rng.IntN(4000)
	}
	if j.w.chance(j.w.plan.poison) {
		m.id, m.poison = m.id+"!", true
	}
	j.sends = append(j.sends, m)
	j.byID[m.id] = m
	return m
}

func (j *judge) conv(m *message) *modelConv { return j.w.store.byID[im.ConversationID(m.conv)] }

func (j *judge) stored(m *message) *clientv1.Entry {
	return j.conv(m).keys[modelKey{m.dev.user, im.ClientMessageID(m.id)}]
}

// echo reports whether what arrives now may be of a former history.
func (j *judge) echo() bool { return j.w.now-j.restores < restoreEcho }

// committed looks at each message that the store takes.
func (j *judge) committed(c *modelConv, e *clientv1.Entry) {
	j.w.tracef("the store has %s as seq %d of %s", e.ClientMessageId, e.Seq, c.id)
	if m := j.byID[e.ClientMessageId]; m == nil || m.conv != string(c.id) || string(m.dev.user) != e.Sender {
		j.w.fail("seq %d of %s was written by nobody", e.Seq, c.id)
	}
}

// acked looks at each ACK_OK that a device gets.
func (j *judge) acked(m *message, a *clientv1.SendAck) {
	e := j.stored(m)
	switch {
	case e != nil && e.MessageId == a.MessageId && e.Seq == a.Seq && e.PrevSeq == a.PrevSeq:
	case j.echo() || m.void:
		m.void = true
		return
	case e == nil:
		j.w.fail("%s was acknowledged and is not in the store", m.id)
	default:
		j.w.fail("%s was acknowledged as seq %d (id %d) and is seq %d (id %d) in the store", m.id, a.Seq, a.MessageId, e.Seq, e.MessageId)
	}
	if f := m.ok; f != nil && !m.void && (f.MessageId != a.MessageId || f.Seq != a.Seq || f.PrevSeq != a.PrevSeq) {
		j.w.fail("%s has two answers: seq %d and seq %d", m.id, f.Seq, a.Seq)
	}
	m.ok = a
}

// refused looks at each ACK_FAIL that a device gets.
func (j *judge) refused(m *message, a *clientv1.SendAck) {
	if e := j.stored(m); e != nil && !j.echo() && !j.cameBack(m) {
		j.w.fail("%s was refused for good (%s) and is seq %d in the store", m.id, a.Error.Reason, e.Seq)
	}
	switch a.Error.Reason {
	case "bad_request":
		if m.poison {
			return
		}
	case "not_member":
		if len(j.conv(m).members[m.dev.user].stays) > 1 || !j.conv(m).present(m.dev.user) || j.echo() {
			return
		}
	}
	j.w.fail("%s was refused for good: %s", m.id, a.Error.Reason)
}

// cameBack reports whether the sender was out of the conversation and came back.
// Then a copy of a refused message that was on its way may be stored; and where
// a refusal got lost, what follows it may be stored before it is sent again.
func (j *judge) cameBack(m *message) bool {
	return len(j.conv(m).members[m.dev.user].stays) > 1
}

// shown looks at each entry that a device shows.
func (j *judge) shown(d *device, v *view, e *clientv1.Entry) {
	if e.Seq <= v.newest {
		j.w.fail("%s shows seq %d of %s behind seq %d", d, e.Seq, v.id, v.newest)
	}
	v.newest = e.Seq
	if d.epoch != j.w.store.epochName() {
		return // it does not know of the new history yet
	}
	c := j.w.store.byID[im.ConversationID(v.id)]
	switch log := c.at(e.Seq); {
	case log == nil || log.MessageId != e.MessageId || log.ClientMessageId != e.ClientMessageId || log.PrevSeq != e.PrevSeq:
		if !j.echo() {
			j.w.fail("%s shows %s as seq %d of %s, which is not the log", d, e.ClientMessageId, e.Seq, v.id)
		}
	case !c.sees(d.user, e.Seq) && !j.echo():
		j.w.fail("%s shows seq %d of %s, which is not for %s", d, e.Seq, v.id, d.user)
	}
}

// moved looks at have after each event of a timeline.
func (j *judge) moved(d *device, v *view) {
	if have := v.tl.Have(); have < v.have {
		j.w.fail("%s had all of %s up to %d and now up to %d", d, v.id, v.have, have)
	} else {
		v.have = have
	}
}

// restoring makes void what is known of messages that will not be stored any
// more.
func (j *judge) restoring() {
	j.restores = j.w.now
	for _, m := range j.sends {
		if e := j.stored(m); e != nil && !slices.Contains(j.conv(m).log[:j.conv(m).backup.entries], e) {
			m.void, m.ok = true, nil
		}
	}
}

// settled reports whether everything is in order as far as it shows from
// outside.
func (j *judge) settled() bool { return j.unsettled() == "" }

// unsettled names something that is not in order yet.
func (j *judge) unsettled() string {
	for _, d := range j.w.devices {
		if !d.online || d.syncing {
			return fmt.Sprintf("%s is not online", d)
		}
		if d.epoch != j.w.store.epochName() {
			return fmt.Sprintf("%s does not know of the new history", d)
		}
		if n := d.box.Len(); n > 0 {
			return fmt.Sprintf("%d messages of %s have no answer", n, d)
		}
		for _, c := range j.w.store.convs {
			if s := j.behind(d, c); s != "" {
				return s
			}
		}
	}
	return ""
}

// behind says what a device lacks of a conversation.
func (j *judge) behind(d *device, c *modelConv) string {
	if c.members[d.user] == nil || c.top(d.user) == 0 {
		return ""
	}
	var v *view
	for _, x := range d.views {
		if x.id == string(c.id) {
			v = x
		}
	}
	switch {
	case v == nil || !v.tl.Known():
		return fmt.Sprintf("%s does not know %s", d, c.id)
	case v.tl.Have() < j.mustHave(c, d.user):
		return fmt.Sprintf("%s has %s up to %d, and there is %d", d, c.id, v.tl.Have(), j.mustHave(c, d.user))
	case len(v.tl.Aside()) > 0:
		return fmt.Sprintf("%s has %v of %s above a gap after %d", d, v.tl.Aside(), c.id, v.tl.Have())
	}
	return ""
}

// mustHave is the newest entry that a user may see.
func (j *judge) mustHave(c *modelConv, u im.UserID) int64 {
	for i := len(c.log) - 1; i >= 0; i-- {
		if c.sees(u, c.log[i].Seq) {
			return c.log[i].Seq
		}
	}
	return 0
}
