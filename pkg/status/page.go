package status

import (
	"bytes"
	"encoding/json"
	"html/template"
	"net/http"
	"strings"
)

// Page is what people see. Cells are plain text.
type Page struct {
	Title  string
	Tables []Table
}

// Table is one table of a page; a table without rows says "none".
type Table struct {
	Caption string // "" = none
	Columns []string
	Rows    [][]string
}

// Link is a page that there is.
type Link struct{ Path, Name string }

// Pages are those of every process. A process lacks those of roles it has not.
var Pages = []Link{
	{"/statusz/", "overview"}, {"/statusz/nodes", "nodes"}, {"/statusz/leaders", "leaders"}, {"/statusz/settings", "settings"},
	{"/statusz/peers", "peers"}, {"/statusz/ring", "ring"}, {"/statusz/lanes", "lanes"}, {"/statusz/gateway", "gateway"}, {"/statusz/jobs", "jobs"},
}

// Handler answers with what read gives: data as JSON, or, for browsers, the page.
func Handler(read func(*http.Request) (data any, page Page)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, page := read(r)
		var b bytes.Buffer
		kind := "application/json"
		var err error
		if strings.Contains(r.Header.Get("Accept"), "text/html") {
			kind = "text/html; charset=utf-8"
			err = pages.Execute(&b, struct {
				Page
				Links []Link
			}{page, Pages})
		} else {
			err = json.NewEncoder(&b).Encode(data)
		}
		if err != nil {
			http.Error(w, "the page cannot be made", http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		_, _ = w.Write(b.Bytes()) // fails only if the client is gone
	})
}

var pages = template.Must(template.New("").Parse(`<!doctype html><html lang="en"><meta charset="utf-8"><title>imd {{.Title}}</title>
<style>body{font:14px system-ui,sans-serif;margin:2em}table{border-collapse:collapse;margin-bottom:2em}td,th{padding:.3em .8em;border-bottom:1px solid #ccc;text-align:left}</style>
<p>{{range .Links}}<a href="{{.Path}}">{{.Name}}</a> {{end}}</p><h1>{{.Title}}</h1>
{{range .Tables}}{{with .Caption}}<h2>{{.}}</h2>{{end}}
<table><tr>{{range .Columns}}<th>{{.}}{{end}}
{{$n := len .Columns}}{{range .Rows}}<tr>{{range .}}<td>{{.}}{{end}}
{{else}}<tr><td colspan="{{$n}}">none
{{end}}</table>{{end}}</html>
`))
