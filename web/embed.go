// Package web holds the built chat page and serves it. The page is written in
// TypeScript in this folder; its built files are committed in dist, so that the
// server builds without Node.
package web

import (
	"embed"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed all:dist
var dist embed.FS

// contentSecurityPolicy lets the page load nothing but its own files and talk
// to nobody but the server it came from.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// hashedFolder holds files whose names change with their content.
const hashedFolder = "/assets/"

// Files returns the built page, with index.html at its root. It is read-only
// and safe for concurrent use.
func Files() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic("web: " + err.Error()) // The folder is embedded; only a build without it gets here.
	}
	return files
}

// Handler serves the page at / and its files below, to GET and HEAD; anything
// else is 404 or 405. Every answer carries the content security policy. Files
// whose names carry a hash may be cached for ever, all others are asked for
// again each time. It is safe for concurrent use. Under a path prefix, put it
// behind http.StripPrefix; the page has relative addresses only.
func Handler() http.Handler {
	files := http.FileServerFS(Files())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentSecurityPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		name := path.Clean("/" + r.URL.Path)
		if hidden(name) {
			http.NotFound(w, r)
			return
		}
		if strings.HasPrefix(name, hashedFolder) && exists(name) {
			h.Set("Cache-Control", "public, max-age=31536000, immutable")
		} else {
			h.Set("Cache-Control", "no-cache")
		}
		files.ServeHTTP(w, r)
	})
}

// exists tells a file from a folder and from nothing.
func exists(name string) bool {
	info, err := fs.Stat(Files(), strings.TrimPrefix(name, "/"))
	return err == nil && !info.IsDir()
}

// hidden tells what is embedded but not part of the page: dot files, and the
// listings of folders.
func hidden(name string) bool {
	return strings.Contains(name, "/.") || name != "/" && name != "/index.html" && !exists(name)
}
