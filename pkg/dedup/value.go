package dedup

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// The marks in front of a value: its kind and the version of its format.
// Another format gets another number, so that releases side by side do not
// misread each other; what is not known is unreadable, which is harmless.
const (
	tryMark    = "T1"
	answerMark = "C1"
)

// TryValue is the value that marks a send as the owner's.
func TryValue(owner string) string { return tryMark + ":" + owner }

// Value is the value of a confirmed send.
func (a Answer) Value() string {
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return strings.Join([]string{
		answerMark, n(int64(a.MessageID)), n(int64(a.Seq)), n(int64(a.PrevSeq)), n(a.ServerTime.UnixMilli()), n(a.MemberVersion),
		hex.EncodeToString(a.BodyHash[:]),
	}, ":")
}

// ParseValue reads a value that the owner found. Nothing is believed that
// Value and TryValue cannot have written.
func ParseValue(v, owner string) Found {
	switch {
	case v == TryValue(owner):
		return Found{State: Claimed}
	case strings.HasPrefix(v, tryMark+":"):
		return Found{State: InFlight}
	}
	if a, ok := parseAnswer(v); ok {
		return Found{State: Known, Answer: a}
	}
	return Found{State: Unreadable}
}

func parseAnswer(v string) (a Answer, ok bool) {
	const parts = 7
	f := strings.Split(v, ":")
	if len(f) != parts || f[0] != answerMark {
		return a, false
	}
	var n [parts - 2]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(f[i+1], 10, 64); err != nil || n[i] < 0 {
			return a, false
		}
	}
	a = Answer{MessageID: im.MessageID(n[0]), Seq: im.Seq(n[1]), PrevSeq: im.Seq(n[2]), ServerTime: time.UnixMilli(n[3]), MemberVersion: n[4]}
	hash, err := hex.DecodeString(f[parts-1])
	if err != nil || len(hash) != len(a.BodyHash) || a.MessageID == 0 || a.Seq == 0 || a.PrevSeq >= a.Seq || n[3] == 0 {
		return Answer{}, false
	}
	copy(a.BodyHash[:], hash)
	return a, a.Value() == v // one way to write each value
}
