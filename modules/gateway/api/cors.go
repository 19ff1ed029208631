package api

import (
	"net/http"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const corsRequestHeaders = "Authorization, Content-Type, Connect-Protocol-Version, Connect-Timeout-Ms, Grpc-Timeout, X-Grpc-Web, X-User-Agent"
const corsResponseHeaders = "Retry-After, Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin"

// cors lets pages of allowed origins read the answers and no others. Nothing
// here looks at cookies, so a foreign page has no credentials to misuse.
func (a *API) cors(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin == "" {
			next.ServeHTTP(w, r)
			return
		}
		h := w.Header()
		h.Add("Vary", "Origin")
		allowed := a.AllowOrigin != nil && a.AllowOrigin(r)
		if allowed {
			h.Set("Access-Control-Allow-Origin", origin)
			h.Set("Access-Control-Expose-Headers", corsResponseHeaders)
		}
		if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
			next.ServeHTTP(w, r)
			return
		}
		if !allowed {
			rpc.WriteError(w, r, http.StatusForbidden, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "api.cors", "pages of the origin %.100q may not call this server: list it among the allowed origins", origin))
			return
		}
		h.Set("Access-Control-Allow-Methods", "GET, POST")
		h.Set("Access-Control-Allow-Headers", corsRequestHeaders)
		h.Set("Access-Control-Max-Age", "7200")
		w.WriteHeader(http.StatusNoContent)
	})
}
