package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// format is how commands print data.
type format string

const (
	human  format = "human"
	asJSON format = "json"
)

// Set parses the flag.
func (f *format) Set(s string) error {
	switch format(s) {
	case human, asJSON:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("must be human or json")
}

// Type is what help shows behind the flag.
func (f *format) Type() string { return "human|json" }

// String is the word.
func (f *format) String() string { return string(*f) }

// printer writes the data of one command.
type printer struct {
	out  io.Writer
	json bool
}

// data writes v as JSON, or lets people write text.
func (p printer) data(v any, text func(w io.Writer)) error {
	if !p.json {
		text(p.out)
		return nil
	}
	enc := json.NewEncoder(p.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// table writes aligned columns under a heading.
func table(w io.Writer, heading string, rows [][]string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(strings.Fields(heading), "\t"))
	for _, r := range rows {
		for i, c := range r {
			if r[i] = printable(c); c == "" {
				r[i] = "-"
			}
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	_ = tw.Flush()
}

// span is a duration for people: two units at most.
func span(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	case d >= time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	case d >= time.Minute:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	}
	return fmt.Sprintf("%ds", int(d.Round(time.Second).Seconds()))
}
