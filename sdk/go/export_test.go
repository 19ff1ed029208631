package imd

import "net/http/httptest"

// DemoServer starts a server in memory for the examples; tokens are user ids.
func DemoServer() (url string, stop func()) {
	srv := httptest.NewServer(newFakeServer().handler())
	return srv.URL, srv.Close
}
