package im

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Entry is one line of a conversation's log as the store keeps it. Content and
// Change stay encoded: the store never looks inside.
type Entry struct {
	Seq             Seq
	PrevSeq         Seq // the newest existing entry below Seq; 0 = none; never changes
	Kind            clientv1.EntryKind
	MessageID       MessageID
	ClientMessageID ClientMessageID // of sends; of changes the request id, which is not shown
	Sender          UserID          // "" = the system
	ServerTime      time.Time       // of the commit, milliseconds
	Content         []byte          // an encoded clientv1.Content; nil = none or recalled
	Change          []byte          // an encoded clientv1.MemberChange or ConversationChange, by Kind
	TargetSeq       Seq
	ChangedSeq      Seq
	Countable       bool
}
