package gateway

import (
	"fmt"
	"net/http"
	"strings"
)

// origins decides which web pages may connect.
type origins struct {
	allowed  map[string]bool // scheme://host[:port], lower case
	all      bool
	required bool
}

// newOrigins takes a configuration that is valid.
func newOrigins(c Config) origins {
	o := origins{allowed: map[string]bool{}, required: c.RequireOrigin}
	for _, s := range c.AllowedOrigins {
		if s == "*" {
			o.all = c.UnsafeAllowAllOrigins
			continue
		}
		if p, err := parseOrigin(s); err == nil {
			o.allowed[p] = true
		}
	}
	return o
}

// check returns why a request with these Origin headers is refused; "" = it is
// not. host is that of the request.
func (o origins) check(headers []string, host string) string {
	switch {
	case len(headers) == 0 && o.required:
		return "a request without Origin is refused (gateway.require_origin); web pages need one that is listed in gateway.allowed_origins"
	case len(headers) == 0:
		return ""
	case len(headers) > 1:
		return fmt.Sprintf("a request has at most one Origin, this one has %q; one that is listed in gateway.allowed_origins may connect", headers)
	case o.permits(headers[0], host):
		return ""
	}
	return fmt.Sprintf("the origin %q may not connect; if it should, list it in gateway.allowed_origins", headers[0])
}

// permits reports whether one origin may connect.
func (o origins) permits(origin, host string) bool {
	if o.all {
		return true
	}
	p, err := parseOrigin(origin)
	if err != nil {
		return false
	}
	_, own, _ := strings.Cut(p, "://")
	return own == strings.ToLower(host) || o.allowed[p]
}

// AllowOrigin reports whether a web page of the request's Origin may call the
// HTTP API: it may if it could open a socket. Requests without one are no
// page's.
func (g *Gateway) AllowOrigin(r *http.Request) bool {
	h := r.Header.Values("Origin")
	return len(h) == 0 || len(h) == 1 && g.origins.permits(h[0], r.Host)
}
