package storetest

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// digestRounds and digestSteps say how much is done at random.
const (
	digestRounds = 3
	digestSteps  = 120
)

// listener knows of a user's conversations what syncs have told.
type listener struct {
	user  im.UserID
	token string
	terms map[im.ConversationID]uint64
}

// take takes a page.
func (l *listener) take(p store.SyncPage) {
	if l.terms == nil {
		l.terms = map[im.ConversationID]uint64{}
	}
	for _, s := range p.States {
		delete(l.terms, s.Conversation)
		if s.Role != clientv1.Role_ROLE_UNSPECIFIED {
			l.terms[s.Conversation] = protocol.DigestTerm(string(s.Conversation), int64(s.Head))
		}
	}
	l.token = p.Token
}

func (l *listener) digest() (sum uint64) {
	for _, t := range l.terms {
		sum += t
	}
	return sum
}

// listen syncs in pages of a size and compares the sums at the end of each sync
// that took one page. It reports whether there was one to compare.
func (k *kit) listen(l *listener, limit int) bool {
	k.Helper()
	for pages := 1; ; pages++ {
		p := k.sync(store.SyncQuery{User: l.user, Token: l.token, Limit: limit, Digest: true})
		l.take(p)
		whole := pages == 1 && !p.More
		switch {
		case whole && p.Digest != l.digest():
			k.Fatalf("%s: the digest is %d, what syncs told has %d", l.user, p.Digest, l.digest())
		case !whole && p.Digest != 0:
			k.Fatalf("%s: page %d of a longer list has a digest", l.user, pages)
		}
		if !p.More {
			return whole
		}
	}
}

// digests compares the sum of a store with the sum over what its syncs told, while
// everything happens that may happen to a conversation.
func digests(k *kit) {
	for seed := range uint64(digestRounds) {
		w := newDigestWorld(k, seed)
		compared := 0
		for range digestSteps {
			w.step()
			if l := w.listeners[w.rng.IntN(len(w.listeners))]; w.rng.IntN(3) == 0 && k.listen(l, 1+w.rng.IntN(8)) {
				compared++
			}
		}
		if compared < digestSteps/20 {
			k.Errorf("only %d sums were compared", compared)
		}
		for _, l := range w.listeners {
			k.listen(l, store.MaxSyncPage)
			fresh := listener{user: l.user}
			k.listen(&fresh, store.MaxSyncPage)
			if fresh.digest() != l.digest() {
				k.Errorf("%s: the full list has another sum than all lists of changes together", l.user)
			}
		}
	}
	lostHead(k)
}

// digestWorld is some users, their groups and who listens.
type digestWorld struct {
	k         *kit
	rng       *rand.Rand
	users     []im.UserID
	groups    []im.ConversationID
	listeners []*listener
	leader    store.Proof
}

func newDigestWorld(k *kit, seed uint64) *digestWorld {
	w := &digestWorld{k: k, rng: rand.New(rand.NewPCG(seed, 1)), leader: k.fence(fmt.Sprint("digest-", seed), 1).Proof()}
	for i := range 4 {
		u := im.UserID(fmt.Sprintf("digest-%d-%d", seed, i))
		w.users = append(w.users, u)
		w.listeners = append(w.listeners, &listener{user: u})
	}
	return w
}

func (w *digestWorld) user() im.UserID { return w.users[w.rng.IntN(len(w.users))] }

// step does something. Much of it is refused, which is as good.
func (w *digestWorld) step() {
	k, a, b := w.k, w.user(), w.user()
	if len(w.groups) == 0 || w.rng.IntN(12) == 0 {
		w.groups = append(w.groups, k.groupOf(store.CreateGroup{Name: "team", Owner: a, OpenHistory: w.rng.IntN(2) == 0}))
		return
	}
	g := w.groups[w.rng.IntN(len(w.groups))]
	c := store.Change{Conversation: g, Actor: a}
	switch w.rng.IntN(11) {
	case 0, 1, 2:
		k.append(row(g, a, "x"), row(g, b, "y"))
		return
	case 3:
		if a != b {
			k.append(to(a, b, "x"))
		}
		return
	case 4, 5:
		c.AddMembers = []im.UserID{b}
	case 6:
		c.RemoveMembers = []im.UserID{b}
	case 7:
		c.Leave = true
	case 8:
		_, _ = k.s.ClearHistory(k.ctx(), g, a, im.Seq(w.rng.IntN(9))) // strangers cannot
		return
	case 9:
		k.retain(w.leader, store.Retain{Group: time.Now().Add(time.Hour), Direct: time.Now().Add(time.Hour), Looks: 100, Entries: 100})
		return
	default:
		if c.Rename = new("renamed"); w.rng.IntN(4) == 0 {
			c.Rename, c.Close = nil, true
		}
	}
	_, _ = k.tryChange(c)
}

// lostHead says that a digest tells when a list lacks a head, and that the full
// list puts it right.
func lostHead(k *kit) {
	g, h := k.group("lost-o", "lost-m"), k.group("lost-o", "lost-m")
	l := listener{user: "lost-m"}
	k.listen(&l, 10)
	k.sent(row(g, "lost-o", "x"), row(h, "lost-o", "x"))
	p := k.sync(store.SyncQuery{User: l.user, Token: l.token, Limit: 10, Digest: true})
	p.States = p.States[:1]
	if l.take(p); p.Digest == l.digest() {
		k.Error("a list without one of its heads has the digest of all")
	}
	p = k.sync(store.SyncQuery{User: l.user, Token: l.token, Limit: 10, Digest: true})
	if l.take(p); len(p.States) != 0 || p.Digest == l.digest() {
		k.Errorf("%d states after the token", len(p.States))
	}
	p = k.sync(store.SyncQuery{User: l.user, Limit: 10, Digest: true})
	if l.take(p); !p.Full || p.Digest != l.digest() {
		k.Error("the full list has another digest than its heads")
	}
	if p := k.sync(store.SyncQuery{User: l.user, Limit: 10}); p.Digest != 0 {
		k.Error("a digest that was not asked for")
	}
	if p := k.sync(store.SyncQuery{User: "lost-nobody", Limit: 10, Digest: true}); p.Digest != 0 {
		k.Error("a digest of nothing")
	}
}

// BenchmarkResume measures a sync where nothing has changed, by how many
// conversations the user has, without and with the digest. s must be empty.
func BenchmarkResume(b *testing.B, s store.MessageStore) {
	for _, n := range []int{5, 200, 5000} {
		u := im.UserID(fmt.Sprintf("u%d", n))
		for from := 0; from < n; from += store.MaxAppendRows {
			rows := make([]store.AppendRow, min(store.MaxAppendRows, n-from))
			for i := range rows {
				rows[i] = to(im.UserID(fmt.Sprintf("%s-%d", u, from+i)), u, "x")
			}
			if res, err := s.Append(b.Context(), rows); err != nil || res[0].Err != nil {
				b.Fatal(err, res)
			}
		}
		q := store.SyncQuery{User: u, Limit: store.MaxSyncPage}
		for {
			p, err := s.Sync(b.Context(), q)
			if err != nil {
				b.Fatal(err)
			}
			if q.Token = p.Token; !p.More {
				break
			}
		}
		for name, digest := range map[string]bool{"plain": false, "digest": true} {
			q := q
			q.Digest = digest
			b.Run(fmt.Sprintf("conversations=%d/%s", n, name), func(b *testing.B) {
				for b.Loop() {
					if _, err := s.Sync(b.Context(), q); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
