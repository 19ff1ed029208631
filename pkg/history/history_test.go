package history

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"
)

// What the recorder writes is JSON that says the same, and the fast reader reads
// it as encoding/json does.
func TestRecordsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringMatching(`[a-z0-9_-]{0,20}`), rapid.String())
		num := rapid.Int64()
		r := Record{T: num.Draw(t, "t"), Kind: Show, User: text.Draw(t, "u"), Device: text.Draw(t, "d"), Conv: text.Draw(t, "c"),
			CMID: text.Draw(t, "cmid"), N: num.Draw(t, "n"), Hash: text.Draw(t, "h"), Ack: text.Draw(t, "ack"), Reason: text.Draw(t, "why"),
			MID: num.Draw(t, "mid"), Seq: num.Draw(t, "seq"), Prev: num.Draw(t, "prev"), To: num.Draw(t, "to"), Dup: rapid.Bool().Draw(t, "dup"),
			Sender: text.Draw(t, "from"), Entry: text.Draw(t, "entry"), Name: text.Draw(t, "name"), Stop: rapid.Bool().Draw(t, "stop")}
		line := appendRecord(nil, r)
		var slow Record
		if err := json.Unmarshal(line, &slow); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		var fast Record
		if parse(line, &fast) && fast != slow {
			t.Fatalf("read as %+v, is %+v", fast, slow)
		}
		want, _ := json.Marshal(r)
		var again Record
		_ = json.Unmarshal(want, &again)
		if slow != again {
			t.Fatalf("wrote %+v, meant %+v", slow, again)
		}
	})
}
