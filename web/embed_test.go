package web

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(t *testing.T, h http.Handler, method, target string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Result()
}

func index(t *testing.T) string {
	t.Helper()
	body, err := io.ReadAll(get(t, Handler(), http.MethodGet, "/").Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestHandler(t *testing.T) {
	script := regexp.MustCompile(`\./(assets/[^"]+\.js)`).FindStringSubmatch(index(t))
	if script == nil {
		t.Fatal("the page names no script with a relative address")
	}
	icon := regexp.MustCompile(`\./(assets/[^"]+\.svg)`).FindStringSubmatch(index(t))
	if icon == nil {
		t.Fatal("the page names no icon with a relative address")
	}
	for _, c := range []struct {
		name, method, target string
		status               int
		kind, cache          string
	}{
		{"page", "GET", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"page, head only", "HEAD", "/", 200, "text/html; charset=utf-8", "no-cache"},
		{"page by its name goes to the root", "GET", "/index.html", 301, "", "no-cache"},
		{"script", "GET", "/" + script[1], 200, "text/javascript; charset=utf-8", "public, max-age=31536000, immutable"},
		{"icon", "GET", "/" + icon[1], 200, "image/svg+xml", "public, max-age=31536000, immutable"},
		{"nothing", "GET", "/nothing", 404, "text/plain; charset=utf-8", ""},
		{"a hashed file of another build", "GET", "/assets/index-00000000.js", 404, "text/plain; charset=utf-8", ""},
		{"a folder", "GET", "/assets/", 404, "text/plain; charset=utf-8", ""},
		{"a dot file", "GET", "/.sources", 404, "text/plain; charset=utf-8", ""},
		{"outside", "GET", "/../embed.go", 404, "text/plain; charset=utf-8", ""},
		{"another method", "POST", "/", 405, "text/plain; charset=utf-8", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := get(t, Handler(), c.method, c.target)
			if r.StatusCode != c.status {
				t.Errorf("status %d, want %d", r.StatusCode, c.status)
			}
			if got := r.Header.Get("Content-Type"); got != c.kind {
				t.Errorf("content type %q, want %q", got, c.kind)
			}
			if got := r.Header.Get("Cache-Control"); got != c.cache {
				t.Errorf("cache control %q, want %q", got, c.cache)
			}
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'",
				"X-Content-Type-Options":  "nosniff",
				"Referrer-Policy":         "no-referrer",
			} {
				if got := r.Header.Get(name); !strings.Contains(got, want) {
					t.Errorf("%s: %q, want %q in it", name, got, want)
				}
			}
		})
	}
}

func TestPrefix(t *testing.T) {
	r := get(t, http.StripPrefix("/chat", Handler()), http.MethodGet, "/chat/")
	if r.StatusCode != http.StatusOK {
		t.Errorf("status %d under a prefix", r.StatusCode)
	}
}

// The policy forbids what these would be.
func TestPageObeysItsPolicy(t *testing.T) {
	page := index(t)
	for _, bad := range []string{"<style", "style=", "onload=", "http://", "https://", `="/`} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if inline := regexp.MustCompile(`<script[^>]*>[^<]`).FindString(page); inline != "" {
		t.Errorf("the page has an inline script: %q", inline)
	}
}

func TestSourcesRecorded(t *testing.T) {
	sum, err := fs.ReadFile(Files(), ".sources")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{64}\n$`).Match(sum) {
		t.Errorf(".sources holds %q, want a SHA-256", sum)
	}
}
