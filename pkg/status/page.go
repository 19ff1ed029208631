package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"

	"github.com/imdhq/imd/pkg/status/look"
)

// Page is what people see. Cells are plain text.
type Page struct {
	Title  string
	Plots  []Plot
	Tables []Table
}

// Plot is a row of values, drawn as bars.
type Plot struct {
	Caption string
	Bars    []Bar
}

// Bar is one value of a plot.
type Bar struct {
	Label string
	Value int64 // below 0 = not known; drawn as a gap
}

// The size of a plot.
const (
	barStep    = 16 // of which 12 are bar
	plotHeight = 80
)

// column is one bar as it is drawn.
type column struct {
	X, Y, Height int64
	Label        string
}

// Width is that of the drawing.
func (p Plot) Width() int { return max(1, len(p.Bars)) * barStep }

// Most is the highest value; 0 if there is none.
func (p Plot) Most() int64 {
	most := int64(0)
	for _, b := range p.Bars {
		most = max(most, b.Value)
	}
	return most
}

// Columns are the bars that are drawn; what is not nothing is seen.
func (p Plot) Columns() []column {
	var out []column
	most := p.Most()
	for i, b := range p.Bars {
		c := column{X: int64(i * barStep), Label: fmt.Sprintf("%s: %d", b.Label, b.Value)}
		if b.Value > 0 {
			c.Height = max(1, b.Value*plotHeight/most)
		}
		c.Y = plotHeight - c.Height
		if b.Value >= 0 {
			out = append(out, c)
		}
	}
	return out
}

// Ends are the labels below the first and the last bar.
func (p Plot) Ends() string {
	if len(p.Bars) == 0 {
		return ""
	}
	return p.Bars[0].Label + " to " + p.Bars[len(p.Bars)-1].Label
}

// Table is one table of a page; a table without rows says "none".
type Table struct {
	Caption string // "" = none
	Columns []string
	Rows    [][]string
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
			err = pages.ExecuteTemplate(&b, "page", struct {
				Page
				Head look.Head
			}{page, look.HeadOf(r, page.Title)})
		} else {
			err = json.NewEncoder(&b).Encode(data)
		}
		if err != nil {
			http.Error(w, "the page cannot be made", http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		look.Secure(h)
		_, _ = w.Write(b.Bytes()) // fails only if the client is gone
	})
}

var pages = template.Must(look.New().Parse(`{{define "page"}}{{template "head" .Head}}<h1>{{.Title}}</h1>
{{range .Plots}}<figure><figcaption>{{.Caption}}</figcaption><small>highest {{.Most}}</small>
<svg width="{{.Width}}" height="80" role="img" aria-label="{{.Caption}}">{{range .Columns}}<rect x="{{.X}}" y="{{.Y}}" width="12" height="{{.Height}}"><title>{{.Label}}</title></rect>{{end}}</svg><small>{{.Ends}}</small></figure>
{{end}}{{range .Tables}}{{with .Caption}}<h2>{{.}}</h2>{{end}}
<table><tr>{{range .Columns}}<th>{{.}}{{end}}
{{$n := len .Columns}}{{range .Rows}}<tr>{{range .}}<td>{{.}}{{end}}
{{else}}<tr><td colspan="{{$n}}">none
{{end}}</table>{{end}}</html>{{end}}
`))
