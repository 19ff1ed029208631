package timeline

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// The vector file is shared with the TypeScript client; its doc key tells the
// format.
const vectorFile = "../../testdata/timeline.json"

type vectorStep struct {
	Op              string
	Now             int64
	Want            vectorWant
	Entries         []json.RawMessage
	Entry           json.RawMessage
	SendAck         json.RawMessage
	Page            json.RawMessage
	Request         Request
	State           json.RawMessage
	Cursor          *int64
	Receipt         json.RawMessage
	ClientMessageID string
	Reason          string
	Seq             int64
	Start           int64
	From            int64
	Have            int64
	RetryAfter      int64
}

type vectorWant struct {
	Show    []int64
	Changed []int64
	Sent    []string
	History *Request
	Sync    bool
	Reset   bool
	Acks    [][2]int64
	Dropped []string
}

type vectorItem struct {
	Seq        int64
	Text       string
	Kind       string
	Recalled   bool
	ChangedSeq int64
	Pending    string
	Failed     string
	Reason     string
}

type vectorEnd struct {
	Have    int64
	Items   []vectorItem
	Unread  uint32
	ReadSeq int64
	Aside   []int64
	Gaps    [][2]int64
	Older   bool
}

type vectorCase struct {
	Name  string
	Self  string
	Keep  int
	Steps []vectorStep
	End   vectorEnd
}

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile(vectorFile)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []vectorCase }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 25 {
		t.Fatalf("%d cases", len(file.Cases))
	}
	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			tl := New(c.Self, c.Keep)
			for i, s := range c.Steps {
				if got := apply(t, tl, s); !reflect.DeepEqual(got, s.Want) {
					t.Errorf("step %d %s: %s, want %s", i, s.Op, toJSON(got), toJSON(s.Want))
				}
				checkInvariants(t, tl)
			}
			if got := endOf(tl); !reflect.DeepEqual(got, c.End) {
				t.Errorf("end %s, want %s", toJSON(got), toJSON(c.End))
			}
		})
	}
}

func toJSON(v any) string {
	out, _ := json.Marshal(v)
	return string(out)
}

func parse[M proto.Message](t *testing.T, raw json.RawMessage, m M) M {
	t.Helper()
	if err := protojson.Unmarshal(raw, m); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return m
}

func apply(t *testing.T, tl *Timeline, s vectorStep) vectorWant {
	t.Helper()
	var fx Effects
	var got vectorWant
	switch s.Op {
	case "restore":
		tl.Restore(s.Start, s.From, s.Have)
	case "deliver":
		var entries []*clientv1.Entry
		for _, raw := range s.Entries {
			entries = append(entries, parse(t, raw, new(clientv1.Entry)))
		}
		fx = tl.Deliver(s.Now, entries)
	case "sendAck":
		fx = tl.SendAck(s.Now, parse(t, s.SendAck, new(clientv1.SendAck)))
	case "page":
		fx = tl.Page(s.Now, s.Request, parse(t, s.Page, new(clientv1.Page)))
	case "state":
		cursor := NoCursor
		if s.Cursor != nil {
			cursor = *s.Cursor
		}
		fx = tl.State(s.Now, cursor, parse(t, s.State, new(clientv1.ConversationState)))
	case "head":
		fx = tl.Head(s.Now, s.Seq)
	case "receipt":
		tl.Receipt(parse(t, s.Receipt, new(clientv1.Receipt)))
	case "send":
		tl.Send(parse(t, s.Entry, new(clientv1.Entry)))
	case "fail":
		tl.Fail(s.ClientMessageID, s.Reason)
	case "withdraw":
		tl.Withdraw(s.ClientMessageID)
	case "tick":
		fx = tl.Tick(s.Now)
	case "disconnected":
		tl.Disconnected()
	case "connected":
		tl.Connected()
	case "synced":
		fx = tl.Synced(s.Now)
	case "resync":
		got.Dropped = tl.Resync()
	case "historyFailed":
		tl.HistoryFailed(s.Now, s.RetryAfter)
	case "takeAcks":
		due := tl.AckDue()
		for _, r := range tl.TakeAcks() {
			got.Acks = append(got.Acks, [2]int64{r.After, r.Seq})
		}
		if due != (len(got.Acks) > 0) {
			t.Errorf("AckDue() = %v before %v", due, got.Acks)
		}
	default:
		t.Fatalf("unknown op %q", s.Op)
	}
	for _, e := range fx.Show {
		got.Show = append(got.Show, e.Seq)
	}
	got.Changed, got.Sent, got.History, got.Sync, got.Reset = fx.Changed, fx.Sent, fx.History, fx.Sync, fx.Reset
	return got
}

func endOf(tl *Timeline) vectorEnd {
	end := vectorEnd{Have: tl.Have(), Items: []vectorItem{}, Unread: tl.Unread(), ReadSeq: tl.ReadSeq(), Aside: tl.Aside(), Older: tl.Older()}
	for _, g := range tl.Gaps() {
		end.Gaps = append(end.Gaps, [2]int64{g.From, g.To})
	}
	for _, it := range tl.Items() {
		e := it.Entry
		v := vectorItem{Text: e.GetContent().GetText()}
		switch it.State {
		case Pending:
			v.Pending = e.ClientMessageId
		case Failed:
			v.Failed, v.Reason = e.ClientMessageId, it.Reason
		default:
			v.Seq, v.ChangedSeq = e.Seq, e.ChangedSeq
			if e.Kind != clientv1.EntryKind_ENTRY_KIND_MESSAGE {
				v.Kind = e.Kind.String()
			} else {
				v.Recalled = e.Content == nil
			}
		}
		end.Items = append(end.Items, v)
	}
	return end
}

// checkInvariants holds after every event.
func checkInvariants(t *testing.T, tl *Timeline) {
	t.Helper()
	last := int64(0)
	for _, it := range tl.items {
		if it.Entry.Seq <= last || it.Entry.Seq > tl.have {
			t.Fatalf("items out of order or above have: %d after %d, have %d", it.Entry.Seq, last, tl.have)
		}
		last = it.Entry.Seq
	}
	if !tl.known {
		return
	}
	for i, s := range tl.stretches {
		if s.hi < s.lo-1 || i > 0 && tl.stretches[i-1].hi >= s.lo-1 {
			t.Fatalf("stretches %v", tl.stretches)
		}
	}
	if n := len(tl.stretches); n == 0 || tl.stretches[n-1].hi != tl.have {
		t.Fatalf("the newest stretch of %v does not end at have %d", tl.stretches, tl.have)
	}
}
