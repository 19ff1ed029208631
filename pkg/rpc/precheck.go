package rpc

import (
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// precheck answers what Connect would refuse without a word, such as a curl
// line without a content type, and bounds the time of slow bodies.
func (s *Server) precheck(next http.Handler) http.Handler {
	readable := map[string]bool{}
	for _, spec := range s.Specs() {
		readable[spec.Procedure] = spec.IdempotencyLevel == connect.IdempotencyNoSideEffects
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		byGet, known := readable[r.URL.Path]
		switch {
		case r.Method == http.MethodGet && !known:
			WriteError(w, r, http.StatusNotFound, refuse("there is no method %s", r.URL.Path))
			return
		case r.Method == http.MethodGet && !byGet, r.Method != http.MethodGet && r.Method != http.MethodPost:
			h.Set("Allow", allow(byGet))
			WriteError(w, r, http.StatusMethodNotAllowed, refuse("the HTTP method %s is not for this call: use POST", r.Method))
			return
		case r.Method == http.MethodGet && !slices.Contains([]string{"json", "proto"}, r.URL.Query().Get("encoding")):
			WriteError(w, r, http.StatusBadRequest, refuse("a GET has the parameters encoding (json or proto) and message"))
			return
		case r.Method == http.MethodPost && !spoken(r.Header.Get("Content-Type")):
			h.Set("Accept-Post", "application/json, application/proto, application/grpc, application/grpc-web")
			WriteError(w, r, http.StatusUnsupportedMediaType, refuse("the content type is not known: send JSON with Content-Type: application/json"))
			return
		}
		c := http.NewResponseController(w)
		_ = c.SetReadDeadline(time.Now().Add(bodyTimeout))     // not every writer can
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))   // not every writer can
		defer func() { _ = c.SetWriteDeadline(time.Time{}) }() // the connection's next request may be another handler's
		next.ServeHTTP(w, r)
	})
}

func allow(byGet bool) string {
	if byGet {
		return "GET, POST"
	}
	return "POST"
}

func refuse(format string, args ...any) error {
	return im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "rpc.precheck", format, args...)
}

// spoken reports whether a content type is one of Connect, gRPC or gRPC-Web
// for calls without streams.
func spoken(contentType string) bool {
	t, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	switch t {
	case "application/json", "application/proto", "application/grpc", "application/grpc-web":
		return true
	}
	base, codec, _ := strings.Cut(t, "+")
	return (base == "application/grpc" || base == "application/grpc-web") && (codec == "json" || codec == "proto")
}

var errorWriter = connecthttp.NewErrorWriter()

// WriteError answers a request outside any call with err as a Connect error
// with detail. status 0 = the one that belongs to its code.
func WriteError(w http.ResponseWriter, r *http.Request, status int, err error) {
	if status != 0 && !strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		w = statusWriter{w, status}
	}
	_ = errorWriter.Write(w, r, im.ToConnect(err)) // the caller is gone if it fails
}

// statusWriter answers with its own status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader writes the status of the writer instead of the given one.
func (w statusWriter) WriteHeader(int) { w.ResponseWriter.WriteHeader(w.status) }
