package cmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

func newSettings(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "settings",
		Short: "Show and change what may change while nodes run",
		Long: `Settings are kept in etcd and hold for the whole cluster, or for a zone, a role or
a node; the narrowest wins. A setting wins over the configuration of a node (file,
IMD_* variable, flag), which gives the value to start from. A change is judged
before it is written, and again by every node: it is taken as a whole or not at all.`,
	}
	c.AddCommand(newSettingsList(a), newSettingsGet(a), newSettingsSet(a), newSettingsWatch(a), newSettingsHistory(a),
		newSettingsRollback(a), newSettingsWait(a), newSettingsDocs(a))
	return c
}

// declaredRow is what is known of a setting without a server.
type declaredRow struct {
	Key     string  `json:"key"`
	Default string  `json:"default"`
	Type    string  `json:"type"`
	Unit    string  `json:"unit,omitempty"`
	Range   string  `json:"range,omitempty"`
	Shrink  float64 `json:"shrink,omitempty"`
	Meaning string  `json:"meaning"`
}

// settingRow is a setting as it holds on the node that answered.
type settingRow struct {
	declaredRow
	Value       string        `json:"value"`
	Source      string        `json:"source"`
	StartValue  string        `json:"start_value"`
	StartSource string        `json:"start_source"`
	Set         []overrideRow `json:"set"` // widest scope first
}

type overrideRow struct {
	Scope string `json:"scope"`
	Value string `json:"value"`
}

type differenceRow struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	Old   string `json:"old"` // "" = not set
	New   string `json:"new"`
}

type appliedRow struct {
	Node     string     `json:"node_id"`
	Applied  string     `json:"applied"` // revision
	Refused  string     `json:"refused,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Reported *time.Time `json:"reported,omitempty"` // nil = not yet
}

func newSettingRow(s *adminv1.Setting) settingRow {
	r := settingRow{
		declaredRow: declaredRow{
			Key: s.GetKey(), Default: s.GetDefault(), Type: s.GetType(), Unit: s.GetUnit(), Range: s.GetRange(), Shrink: s.GetShrink(), Meaning: s.GetSentence(),
		},
		Value: s.GetValue(), Source: s.GetSource(), StartValue: s.GetStartValue(), StartSource: s.GetStartSource(), Set: []overrideRow{},
	}
	for _, o := range s.GetOverrides() {
		r.Set = append(r.Set, overrideRow{o.GetScope(), o.GetValue()})
	}
	return r
}

func differenceRows(all []*adminv1.SettingDifference) []differenceRow {
	rows := make([]differenceRow, 0, len(all))
	for _, d := range all {
		rows = append(rows, differenceRow{d.GetKey(), d.GetScope(), d.GetOldValue(), d.GetNewValue()})
	}
	return rows
}

// line shows a change: gateway.ping_interval (zone eu): 25s -> 10s.
func (d differenceRow) line() string {
	show := func(v string) string {
		if v == "" {
			return "(not set)"
		}
		return v
	}
	scope := ""
	if d.Scope != "all" {
		scope = " (" + d.Scope + ")"
	}
	return d.Key + scope + ": " + show(d.Old) + " -> " + show(d.New)
}

func (f *serverFlags) settingsService() (adminv1connect.SettingsServiceClient, error) {
	client, err := f.admin()
	if err != nil {
		return nil, err
	}
	return adminv1connect.NewSettingsServiceClient(client), nil
}

func newSettingsList(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "list",
		Short:   "List all settings with the value that holds and where it comes from",
		Example: "  imd settings list\n  imd settings list -o json",
		Args:    cobra.NoArgs,
	}
	f := addServer(a, c, "ops listener")
	c.RunE = func(c *cobra.Command, _ []string) error { return f.showSettings(c, nil) }
	return c
}

func newSettingsGet(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "get KEY...",
		Short:   "Show settings: value, source, range and every place where they are set",
		Long:    "Get asks one node. With --applied it also lists what every node has in force, and which nodes differ.",
		Example: "  imd settings get gateway.ping_interval\n  imd settings get rate.factor --applied",
		Args:    cobra.MinimumNArgs(1),
	}
	f := addServer(a, c, "ops listener")
	applied := c.Flags().Bool("applied", false, "list what each node has in force")
	c.RunE = func(c *cobra.Command, keys []string) error {
		if *applied {
			return f.showApplied(c, keys)
		}
		return f.showSettings(c, keys)
	}
	return c
}

// settingsPage is what list and get print as JSON.
type settingsPage struct {
	Node     string       `json:"node_id"`
	Revision string       `json:"revision"`
	Refused  string       `json:"refused,omitempty"`
	Reason   string       `json:"reason,omitempty"`
	Settings []settingRow `json:"settings"`
	Nodes    []appliedRow `json:"nodes,omitempty"`
}

func (f *serverFlags) readSettings(ctx context.Context, svc adminv1connect.SettingsServiceClient, keys []string) (settingsPage, error) {
	res, err := svc.ListSettings(ctx, &adminv1.ListSettingsRequest{Keys: keys})
	if err != nil {
		return settingsPage{}, err
	}
	p := settingsPage{Node: res.GetNodeId(), Revision: fmt.Sprint(res.GetRevision()), Reason: res.GetRefusedReason(), Settings: []settingRow{}}
	if res.GetRefusedRevision() != 0 {
		p.Refused = fmt.Sprint(res.GetRefusedRevision())
	}
	for _, s := range res.GetSettings() {
		p.Settings = append(p.Settings, newSettingRow(s))
	}
	return p, nil
}

func (f *serverFlags) showSettings(c *cobra.Command, keys []string) error {
	svc, err := f.settingsService()
	if err != nil {
		return err
	}
	ctx, cancel := f.app.bounded(c.Context())
	defer cancel()
	page, err := f.readSettings(ctx, svc, keys)
	if err != nil {
		return err
	}
	return f.app.printer().data(page, func(w io.Writer) {
		if keys == nil {
			printSettings(w, page)
			return
		}
		for _, s := range page.Settings {
			printSetting(w, s)
		}
	})
}

func printSettings(w io.Writer, page settingsPage) {
	var rows [][]string
	for _, s := range page.Settings {
		rows = append(rows, []string{s.Key, s.Value, s.Source, s.Range, s.Unit})
	}
	table(w, "SETTING VALUE SOURCE RANGE UNIT", rows)
	printRefusal(w, page)
}

func printRefusal(w io.Writer, page settingsPage) {
	if page.Refused != "" {
		fmt.Fprintf(w, "revision %s was refused by node %s: %s\n", page.Refused, page.Node, page.Reason)
	}
}

func printSetting(w io.Writer, s settingRow) {
	fmt.Fprintf(w, "%s = %s, from %s\n  %s\n", s.Key, s.Value, s.Source, s.Meaning)
	fmt.Fprintf(w, "  %s", s.Type)
	if s.Range != "" {
		fmt.Fprintf(w, ", %s", s.Range)
	}
	if s.Unit != "" {
		fmt.Fprintf(w, " %s", s.Unit)
	}
	fmt.Fprintf(w, "; default %s", s.Default)
	if s.Shrink != 0 {
		fmt.Fprintf(w, "; one change may shrink it at most %g times", s.Shrink)
	}
	fmt.Fprintln(w)
	if s.StartSource != "default" {
		fmt.Fprintf(w, "  this node starts with %s, from %s\n", s.StartValue, s.StartSource)
	}
	for _, o := range s.Set {
		fmt.Fprintf(w, "  set to %s for %s\n", o.Value, o.Scope)
	}
}

func (f *serverFlags) showApplied(c *cobra.Command, keys []string) error {
	svc, err := f.settingsService()
	if err != nil {
		return err
	}
	ctx, cancel := f.app.bounded(c.Context())
	defer cancel()
	page, err := f.readSettings(ctx, svc, keys)
	if err != nil {
		return err
	}
	res, err := svc.ListSettingsStatus(ctx, &adminv1.ListSettingsStatusRequest{})
	if err != nil {
		return err
	}
	page.Nodes = appliedRows(res.GetNodes())
	return f.app.printer().data(page, func(w io.Writer) {
		for _, s := range page.Settings {
			printSetting(w, s)
		}
		printApplied(w, page.Nodes, page.Revision)
	})
}

func appliedRows(nodes []*adminv1.SettingsStatus) []appliedRow {
	rows := make([]appliedRow, 0, len(nodes))
	for _, n := range nodes {
		r := appliedRow{Node: n.GetNodeId(), Applied: fmt.Sprint(n.GetAppliedRevision()), Reason: n.GetRefusedReason()}
		if n.GetRefusedRevision() != 0 {
			r.Refused = fmt.Sprint(n.GetRefusedRevision())
		}
		if n.GetAtMs() != 0 {
			at := time.UnixMilli(n.GetAtMs()).UTC()
			r.Reported = &at
		}
		rows = append(rows, r)
	}
	return rows
}

func printApplied(w io.Writer, nodes []appliedRow, want string) {
	var rows [][]string
	same := 0
	for _, n := range nodes {
		note := ""
		switch {
		case n.Reported == nil:
			note = "has not reported"
		case n.Refused != "":
			note = "refused " + n.Refused + ": " + n.Reason
		case n.Applied != want:
			note = "differs"
		default:
			same++
		}
		rows = append(rows, []string{n.Node, n.Applied, note})
	}
	table(w, "NODE REVISION NOTE", rows)
	fmt.Fprintf(w, "revision %s is in force on %d of %d nodes\n", want, same, len(nodes))
}

func newSettingsDocs(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "docs",
		Short:   "Print a table of all settings that this binary knows",
		Example: "  imd settings docs",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(*cobra.Command, []string) error {
		reg, err := hotSettings(a.specs)
		if err != nil {
			return err
		}
		rows := []declaredRow{}
		for _, d := range reg.All() {
			rows = append(rows, declaredRow{Key: d.Key, Default: d.Default, Type: string(d.Kind), Unit: d.Unit, Range: d.Range, Shrink: d.Shrink, Meaning: d.Sentence})
		}
		return a.printer().data(map[string]any{"settings": rows}, func(w io.Writer) { _ = reg.WriteReference(w) })
	}
	return c
}
