package redis

import (
	"crypto/sha1" //nolint:gosec // it is how Redis names scripts
	"encoding/hex"
	"github.com/imdhq/imd/pkg/failpoint"
	"strings"

	"github.com/redis/rueidis"
)

// script is a Lua script and the name under which a server remembers it.
type script struct{ text, name string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) //nolint:gosec // as above
	return script{text, hex.EncodeToString(sum[:])}
}

var (
	claim   = newScript(claimScript)
	refresh = newScript(refreshScript)
	release = newScript(releaseScript)
	sweep   = newScript(sweepScript)
	memory  = newScript(memoryScript)
)

// What known-bad builds run in the place of the others.
var (
	claimWithoutTime = newScript(strings.Replace(claimScript, "math.max(top + 1, now, floor + 1, since)", "top + 1", 1))
	releaseAny       = newScript(strings.Replace(releaseScript, "r.id == ARGV[4] and r.epoch == tonumber(ARGV[5])", "true", 1))
)

// or is s, or in a known-bad build the script that makes the mistake.
func (s script) or(d failpoint.Defect, bad script) script {
	if failpoint.Bad(d) {
		return bad
	}
	return s
}

// by builds the call of a script by its name, or by its text.
func (s script) by(name bool, b rueidis.Builder, key string, args []string) rueidis.Completed {
	if name {
		return b.Evalsha().Sha1(s.name).Numkeys(1).Key(key).Arg(args...).Build()
	}
	return b.Eval().Script(s.text).Numkeys(1).Key(key).Arg(args...).Build()
}

// unknown reports whether the server does not know the script.
func unknown(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && strings.HasPrefix(e.Error(), "NOSCRIPT")
}
