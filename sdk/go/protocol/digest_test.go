package protocol

import "testing"

// The same terms are in the test of the web client.
func TestDigestTerm(t *testing.T) {
	for _, c := range []struct {
		conversation string
		head         int64
		want         uint64
	}{
		{"g_31", 88, 6943931884913024186},
		{"d_mvjrvdxp5j5zg2j2n6ar37gxia", 9007199254740991, 9797563130005740999},
		{"", 0, 1866903987063215603},
	} {
		if got := DigestTerm(c.conversation, c.head); got != c.want {
			t.Errorf("%q at %d: %d, want %d", c.conversation, c.head, got, c.want)
		}
	}
}
