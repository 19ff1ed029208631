package deploy

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// All files are in the one that is printed, and it is one document.
func TestAlertsAreOneFile(t *testing.T) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []map[string]any
		}
	}
	if err := yaml.Unmarshal([]byte(Alerts()), &rules); err != nil {
		t.Fatal(err)
	}
	files, err := alerts.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, g := range rules.Groups {
		names[g.Name] = len(g.Rules) > 0
	}
	if len(names) != len(rules.Groups) || len(names) < len(files) {
		t.Errorf("%d groups of %d files: %v", len(rules.Groups), len(files), names)
	}
}

// What is put into the unit is in it, and the one that ships is the default.
func TestUnitText(t *testing.T) {
	if DefaultUnit().Text() != unit {
		t.Error("the default is not the file that ships")
	}
	u := Unit{Program: "/opt/imd", User: "chat", Config: "/srv/imd.yaml", Env: "/srv/env", Credentials: []Credential{{"redis.url", "/srv/redis", "IMD_REDIS_URL_FILE"}}}
	for _, line := range []string{"User=chat", "EnvironmentFile=/srv/env/%i.env", "LoadCredential=redis.url:/srv/redis", "Environment=IMD_REDIS_URL_FILE=redis.url",
		"ExecStart=/opt/imd serve --config /srv/imd.yaml --data-dir /var/lib/imd/%i"} {
		if !strings.Contains(u.Text(), "\n"+line+"\n") {
			t.Errorf("%s is missing in\n%s", line, u.Text())
		}
	}
	for value, want := range map[string]bool{"/usr/bin/imd": true, "": false, "/a b": false, "/a\nb": false, "/%h": false, "/$HOME": false, `/"`: false} {
		if Plain(value) != want {
			t.Errorf("Plain(%q) is %v", value, !want)
		}
	}
}
