package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func (k *kit) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func users(k *kit) {
	if _, err := k.s.User(k.ctx(), "a"); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("an unknown user: %v", err)
	}
	u, err := k.s.PutUser(k.ctx(), "a")
	k.must(err)
	if u.ID != "a" || u.Disabled || time.Since(u.Created) > time.Minute {
		k.Errorf("user: %+v", u)
	}
	k.must(k.s.SetDisabled(k.ctx(), "a", true))
	again, err := k.s.PutUser(k.ctx(), "a")
	k.must(err)
	if !again.Disabled || !again.Created.Equal(u.Created) {
		k.Errorf("put again: %+v, first %+v", again, u)
	}
	k.must(k.s.SetDisabled(k.ctx(), "a", false))
	k.must(k.s.SetDisabled(k.ctx(), "new", true))
	for id, disabled := range map[im.UserID]bool{"a": false, "new": true} {
		if u, err := k.s.User(k.ctx(), id); err != nil || u.Disabled != disabled {
			k.Errorf("%s: %+v, %v", id, u, err)
		}
	}
	if _, err := k.s.PutUser(k.ctx(), ""); err == nil {
		k.Error("the system is no user")
	}
	k.group("o", "m")
	if _, err := k.s.User(k.ctx(), "m"); err != nil {
		k.Errorf("a member is not known: %v", err)
	}
}

func revocations(k *kit) {
	now := time.Now().Truncate(time.Millisecond)
	put := func(r store.Revocation) { k.must(k.s.RevokeLogin(k.ctx(), r)) }
	put(store.Revocation{User: "a", Login: "l1", Reason: clientv1.Reason_REASON_KICKED, Until: now.Add(time.Hour)})
	put(store.Revocation{User: "a", Login: "l2", Reason: clientv1.Reason_REASON_REPLACED, Until: now.Add(-time.Hour)})
	put(store.Revocation{User: "a", IssuedBefore: now, Reason: clientv1.Reason_REASON_REVOKED, Until: now.Add(2 * time.Hour)})
	put(store.Revocation{User: "b", Login: "l1", Reason: clientv1.Reason_REASON_REVOKED, Until: now.Add(time.Hour)})
	list := func(u im.UserID) map[im.LoginID]store.Revocation {
		k.Helper()
		l, err := k.s.Revocations(k.ctx(), u)
		k.must(err)
		out := map[im.LoginID]store.Revocation{}
		for _, r := range l {
			out[r.Login] = r
		}
		return out
	}
	got := list("a")
	if len(got) != 2 || got["l1"].Reason != clientv1.Reason_REASON_KICKED || !got[""].IssuedBefore.Equal(now) || !got[""].Until.Equal(now.Add(2*time.Hour)) {
		k.Errorf("revocations: %+v", got)
	}
	_, err := k.s.PutUser(k.ctx(), "a")
	k.must(err)
	k.must(k.s.SetDisabled(k.ctx(), "c", true))
	callers, err := k.s.Callers(k.ctx(), []im.UserID{"a", "b", "c", "a", "nobody"})
	k.must(err)
	same(k, "callers", len(callers), 2) // b was never seen
	same(k, "a caller's revocations", len(callers["a"].Revocations), len(got))
	if c := callers["c"]; !c.User.Disabled || c.User.ID != "c" || callers["a"].User.Disabled || callers["a"].User.Created.IsZero() {
		k.Errorf("callers: %+v", callers)
	}
	if _, err := k.s.Callers(k.ctx(), make([]im.UserID, store.MaxCallers+1)); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("too many callers: %v", err)
	}
	put(store.Revocation{User: "a", Login: "l1", Reason: clientv1.Reason_REASON_REVOKED, Until: now.Add(time.Minute)})
	if r := list("a")["l1"]; !r.Until.Equal(now.Add(time.Hour)) {
		k.Errorf("a second revocation shortened the first: %+v", r)
	}
	lead := k.fence("scheduler", 1).Proof()
	n, err := k.s.Expire(k.ctx(), lead, now)
	k.must(err)
	same(k, "expired", n, 1)
	n, err = k.s.Expire(k.ctx(), lead, now.Add(90*time.Minute))
	k.must(err)
	same(k, "expired later", n, 2)
	same(k, "left", []int{len(list("a")), len(list("b"))}, []int{1, 0})
}

// More than one step takes goes in several; mutes that still hold stay.
func expiry(k *kit) {
	p := k.fence("x", 1).Proof()
	now := time.Now()
	for i := range store.MaxExpire + 3 {
		k.must(k.s.RevokeLogin(k.ctx(), store.Revocation{User: "a", Login: im.LoginID(fmt.Sprint("l", i)), Reason: clientv1.Reason_REASON_REVOKED, Until: now.Add(time.Hour)}))
	}
	g := k.group("o", "m", "n")
	k.must(k.s.SetMute(k.ctx(), g, "m", now.Add(time.Minute)))
	k.must(k.s.SetMute(k.ctx(), g, "n", now.Add(48*time.Hour)))
	for _, want := range []int{store.MaxExpire + 1, 3, 0} {
		n, err := k.s.Expire(k.ctx(), p, now.Add(2*time.Hour))
		k.must(err)
		same(k, "rows that went", n, want)
	}
	n, err := k.s.Expire(k.ctx(), p, now.Add(72*time.Hour))
	k.must(err)
	same(k, "the other mute", n, 1)
}

func keys(k *kit) {
	if _, err := k.s.Key(k.ctx(), "none"); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("no such key: %v", err)
	}
	t0 := time.Now().Truncate(time.Millisecond)
	b := store.Key{ID: "b", Name: "backend", Scopes: []string{"send", "users"}, SecretHash: sha256.Sum256([]byte("s")), Created: t0}
	a := store.Key{ID: "a", Name: "later", Created: t0.Add(time.Second)}
	k.must(k.s.PutKey(k.ctx(), a))
	k.must(k.s.PutKey(k.ctx(), b))
	got, err := k.s.Key(k.ctx(), "b")
	k.must(err)
	if got.Name != b.Name || len(got.Scopes) != 2 || got.SecretHash != b.SecretHash || !got.Created.Equal(t0) || !got.Revoked.IsZero() {
		k.Errorf("key: %+v", got)
	}
	b.Revoked = t0.Add(time.Minute)
	k.must(k.s.PutKey(k.ctx(), b))
	list, err := k.s.Keys(k.ctx())
	k.must(err)
	if len(list) != 2 || list[0].ID != "b" || !list[0].Revoked.Equal(b.Revoked) || list[1].ID != "a" || len(list[1].Scopes) != 0 {
		k.Errorf("keys: %+v", list)
	}
}

func newest(k *kit) {
	get := func() time.Time {
		k.Helper()
		n, err := k.s.Newest(k.ctx())
		k.must(err)
		return n
	}
	if !get().IsZero() {
		k.Error("an empty store has a newest entry")
	}
	_, err := k.s.PutUser(k.ctx(), "a")
	k.must(err)
	if !get().IsZero() {
		k.Error("a user counts as an entry")
	}
	r := k.append(to("a", "b", "x"))[0]
	if got := get(); !got.Equal(r.ServerTime) || time.Since(got) > time.Minute {
		k.Errorf("newest %v, entry %v", got, r.ServerTime)
	}
	k.must(k.s.Ping(k.ctx()))
	if k.s.Writers() < 1 {
		k.Error("no writers")
	}
}

func doneContext(k *kit) {
	conv := k.group("a")
	ctx, cancel := context.WithCancel(k.Context())
	cancel()
	if _, err := k.s.Append(ctx, []store.AppendRow{row(conv, "a", "x")}); !errors.Is(err, context.Canceled) {
		k.Errorf("append: %v", err)
	}
	if _, err := k.s.History(ctx, store.HistoryQuery{Reader: "a", Conversation: conv, Limit: 1}); !errors.Is(err, context.Canceled) {
		k.Errorf("history: %v", err)
	}
	if err := k.s.Ping(ctx); err == nil {
		k.Error("ping: no error")
	}
	same(k, "log", k.seen(conv, "a"), upTo(1, 1))
}

func reopening(k *kit) {
	g := k.group("o", "m", "n")
	r := row(g, "m", "x")
	first := k.append(r)[0]
	k.remove(g, "o", "n")
	k.sent(to("a", "b", "y"))
	k.must(k.s.SetBlock(k.ctx(), "a", "b", true))
	k.save(store.Position{Conversation: g, User: "o", Read: 2})
	_, token := k.syncAll(store.SyncQuery{User: "o"})
	_, version, err := k.s.Heads(k.ctx(), []im.UserID{"o"}, "")
	k.must(err)
	epoch := k.s.DataEpoch()
	if epoch == "" {
		k.Error("no data_epoch")
	}
	for range 2 {
		k.s = k.d.Reopen(k, k.s)
		same(k, "data_epoch", k.s.DataEpoch(), epoch)
		if got := k.append(r)[0]; !got.Duplicate || got.Seq != first.Seq || got.MessageID != first.MessageID || !got.ServerTime.Equal(first.ServerTime) {
			k.Errorf("resend: %+v, first %+v", got, first)
		}
		k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(g, "n", "x"))
		k.refusedRow(clientv1.Reason_REASON_FORBIDDEN, to("b", "a", "x"))
		p := k.position(g, "o")
		same(k, "position", []any{p.Read, p.Head, p.Members}, []any{2, 3, 2})
		same(k, "former member", k.seen(g, "n"), upTo(1, 3))
		if changed, _ := k.syncAll(store.SyncQuery{User: "o", Token: token}); len(changed) != 0 {
			k.Errorf("changed over a restart: %v", ids(changed))
		}
		if h, _, err := k.s.Heads(k.ctx(), []im.UserID{"o"}, version); err != nil || len(h) != 0 {
			k.Errorf("heads over a restart: %v, %v", h, err)
		}
	}
	if seq := k.sent(row(g, "m", "z")); seq != 4 && !(k.d.Holes && seq > 4) {
		k.Errorf("numbering goes on at %d behind 3", seq)
	}
	if changed, _ := k.syncAll(store.SyncQuery{User: "o", Token: token}); len(changed) != 1 {
		k.Errorf("changed: %v", ids(changed))
	}
}
