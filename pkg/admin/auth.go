package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Auth lets requests pass that carry the admin key as bearer token; others get
// 401 with a Connect error. An empty key lets nobody pass. Use it for every
// handler of the ops listener that tells or changes more than readiness and
// metrics.
func Auth(key string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(key))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(token))) // equal lengths, so that the comparison tells nothing
		if key == "" || !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			rpc.WriteError(w, r, http.StatusUnauthorized, im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, "admin.Auth",
				"the admin key of the data folder is needed: Authorization: Bearer <admin key>"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
