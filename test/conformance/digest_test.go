package conformance

import (
	"fmt"
	"slices"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func init() {
	statements = append(statements, statement{41, "(digest) a sync of one page carries the sum over the heads of all conversations", nil, false, digestOfHeads})
}

// mirror is what syncs have told a user.
type mirror struct {
	*testenv.Client
	t     *testing.T
	token string
	heads map[string]int64 // of conversations that it is a member of
}

// sync takes in one sync to its end and returns its last page, and how many there were.
func (m *mirror) sync() (r *clientv1.SyncResult, pages int) {
	m.t.Helper()
	for {
		r = m.Sync(&clientv1.Sync{SyncToken: m.token})
		for _, st := range r.Conversations {
			if delete(m.heads, st.ConversationId); st.Role != clientv1.Role_ROLE_UNSPECIFIED {
				m.heads[st.ConversationId] = st.HeadSeq
			}
		}
		m.token, pages = r.SyncToken, pages+1
		if !r.More {
			return r, pages
		}
		if r.Digest != 0 {
			return r, 0
		}
	}
}

func (m *mirror) digest() (sum uint64) {
	for id, head := range m.heads {
		sum += protocol.DigestTerm(id, head)
	}
	return sum
}

func digestOfHeads(t *testing.T, s *suite) {
	ann := testenv.Dial(t, s.Door(), s.enc)
	f := ann.Request(helloFrame(0, hello(s.Token(s.user("ann")))))
	if !slices.Contains(f.GetWelcome().GetFeatures(), "digest") {
		t.Fatalf("no feature digest: %v", f)
	}
	m := &mirror{Client: ann, t: t, heads: map[string]int64{}}
	same := func(what string) {
		t.Helper()
		r, pages := m.sync()
		if pages != 1 || r.Digest != m.digest() {
			t.Errorf("%s: the digest after %d pages is %d, the heads have %d", what, pages, r.Digest, m.digest())
		}
	}
	if r, _ := m.sync(); r.Digest != 0 {
		t.Errorf("without a conversation the digest is %d", r.Digest)
	}
	own, g := s.group(t, "ann", "bob"), s.group(t, "zoe", "ann", "bob")
	same("two groups")
	zoe := s.login(t, "zoe", "d")
	for i := range 3 {
		zoe.MustSend(testenv.To(g, fmt.Sprint(i)))
	}
	zoe.MustSend(testenv.ToUser(s.user("ann"), "hi"))
	same("messages")
	same("nothing")
	ann.Request(readFrame(g, 2))
	testenv.MustPost(t, s.URL(), changes+"ClearHistory", s.Token(s.user("ann")), map[string]any{"conversationId": g, "upToSeq": "3"})
	same("read and cleared")
	s.change(t, "ann", "Rename", own, map[string]any{"name": "other"})
	s.change(t, "zoe", "RemoveMembers", g, map[string]any{"userIds": []string{s.user("ann")}})
	zoe.MustSend(testenv.To(g, "hidden"))
	same("removed")
	if _, in := m.heads[g]; in || len(m.heads) != 2 {
		t.Errorf("after the removal: %v", m.heads)
	}
	s.change(t, "zoe", "AddMembers", g, map[string]any{"userIds": []string{s.user("ann")}})
	same("back")
	s.change(t, "ann", "SetRole", own, map[string]any{"userId": s.user("bob"), "role": "ROLE_OWNER"})
	s.change(t, "ann", "Leave", own, nil)
	same("left")
	s.change(t, "zoe", "Close", g, nil)
	same("closed")
	lost := m.heads[g]
	m.heads[g]--
	if r, _ := m.sync(); r.Digest == m.digest() || len(r.Conversations) != 0 {
		t.Errorf("the digest does not show a lost head: %v", r)
	}
	m.token, m.heads = "", map[string]int64{}
	if same("the full list"); m.heads[g] != lost {
		t.Errorf("the head is %d, want %d", m.heads[g], lost)
	}
	for i := range 210 {
		ann.MustSend(testenv.ToUser(s.user(fmt.Sprint("x", i)), "hi"))
	}
	if r, pages := m.sync(); pages < 2 || r.Digest != 0 {
		t.Errorf("a list of %d pages ends with the digest %d", pages, r.Digest)
	}
	same("after a long list")
}
