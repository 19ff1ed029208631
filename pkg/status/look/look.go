// Package look is how the pages of the ops listener look: their style, and the
// links to all of them at the top. Pages are templates that begin with the one
// named "head", whose value is a Head.
package look

import (
	"context"
	"html/template"
	"net/http"
)

// Link is a page that there is.
type Link struct{ Path, Name string }

// Links are the pages of all processes together: one lacks those of roles it has not.
var Links = []Link{
	{"/statusz/", "overview"}, {"/statusz/nodes", "nodes"}, {"/statusz/leaders", "leaders"}, {"/statusz/settings", "settings"},
	{"/statusz/peers", "peers"}, {"/statusz/ring", "ring"}, {"/statusz/lanes", "lanes"}, {"/statusz/gateway", "gateway"}, {"/statusz/jobs", "jobs"}, {"/statusz/stats", "statistics"},
}

// Head is the beginning of a page.
type Head struct {
	Title string // plain text
	Path  string // of the page itself; its link is marked
	has   func(path string) bool
}

type pagesKey struct{}

// With gives r what HeadOf asks whether the process has a page.
func With(r *http.Request, has func(path string) bool) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), pagesKey{}, has))
}

// HeadOf is the head of the page that r asks for. It links to the pages that the
// process has, or to all if nobody has said With which those are.
func HeadOf(r *http.Request, title string) Head {
	has, _ := r.Context().Value(pagesKey{}).(func(path string) bool)
	return Head{Title: title, Path: r.URL.Path, has: has}
}

// Links are the pages that the process has.
func (h Head) Links() []Link {
	var out []Link
	for _, l := range Links {
		if h.has == nil || h.has(l.Path) {
			out = append(out, l)
		}
	}
	return out
}

// Secure sets the header of a page: nothing but its own style is loaded, and it is
// not kept. Answers to programs may have it, too.
func Secure(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
}

// New is a set of templates that has the template "head". Safe to add to.
func New() *template.Template { return template.Must(template.New("").Parse(head)) }

// A page follows the colours of the browser, and what is too wide for a small
// screen is scrolled.
const head = `{{define "head"}}<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>imd {{.Title}}</title>
<style>:root{color-scheme:light dark;--line:#ccc;--quiet:#555;--bar:#36c;--link:#15c}
@media(prefers-color-scheme:dark){:root{--line:#444;--quiet:#aaa;--bar:#7af;--link:#8bf}}
body{font:14px/1.4 system-ui,sans-serif;margin:1.5em}h1{font-size:1.6em}a{color:var(--link)}
nav a{display:inline-block;margin:0 1em .3em 0}nav a[aria-current]{color:inherit;font-weight:600;text-decoration:none}
table{border-collapse:collapse;margin-bottom:2em;display:block;overflow-x:auto}td,th{padding:.3em .8em;border-bottom:1px solid var(--line);text-align:left}th,td:first-child,td:last-child{white-space:nowrap}
svg{display:block;max-width:100%;border-bottom:1px solid var(--line)}rect{fill:var(--bar)}figure{display:inline-block;margin:0 2em 1.5em 0;vertical-align:top}figcaption{font-weight:600}small{color:var(--quiet)}</style>
<nav>{{$here := .Path}}{{range .Links}}<a href="{{.Path}}"{{if eq .Path $here}} aria-current="page"{{end}}>{{.Name}}</a>{{end}}</nav>
{{end}}`
