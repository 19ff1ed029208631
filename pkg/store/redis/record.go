package redis

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// record is what of a route comes behind its epoch and its end of life.
func record(r store.Route) (string, error) {
	parts := []string{string(r.Login), string(r.Device), string(r.Class), string(r.Node), r.Boot, strconv.FormatInt(r.Since.UnixMicro(), 10)}
	for _, p := range append(parts, string(r.Session)) {
		if strings.Contains(p, "\n") {
			return "", im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "redis.record", "a route with a newline in it")
		}
	}
	return strings.Join(parts, "\n") + "\n", nil
}

var errRecord = errors.New("a route is not of the form that is expected")

// parse reads a whole record, and when it ends.
func parse(user im.UserID, session, text string) (r store.Route, ends time.Time, err error) {
	var f [8]string // each ends with a newline
	for i := range f {
		var more bool
		if f[i], text, more = strings.Cut(text, "\n"); !more {
			return r, ends, errRecord
		}
	}
	epoch, err1 := strconv.ParseUint(f[0], 10, 64)
	until, err2 := strconv.ParseInt(f[1], 10, 64)
	since, err3 := strconv.ParseInt(f[7], 10, 64)
	if text != "" || err1 != nil || err2 != nil || err3 != nil {
		return r, ends, errRecord
	}
	return store.Route{User: user, Session: im.SessionID(session), Login: im.LoginID(f[2]), Device: im.DeviceID(f[3]), Class: im.Class(f[4]),
		Node: im.NodeID(f[5]), Boot: f[6], Epoch: epoch, Since: time.UnixMicro(since)}, time.UnixMicro(until), nil
}
