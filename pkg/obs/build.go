package obs

import (
	"runtime"
	"runtime/debug"
)

// Set by the linker: -X github.com/imdhq/imd/pkg/obs.version=...
var (
	version string
	commit  string
	date    string
)

// Build says what binary this is.
type Build struct {
	Version string `json:"version"`        // "0.1.0"; "devel" if the build did not tell
	Commit  string `json:"commit"`         // "" if unknown
	Date    string `json:"date,omitempty"` // of the commit, RFC 3339; "" if unknown
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// ThisBuild describes the running binary: what the linker was told, else what
// Go recorded, else "devel".
func ThisBuild() Build {
	b := Build{Version: version, Commit: commit, Date: date, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok && b.Version == "" && info.Main.Version != "(devel)" {
		b.Version = info.Main.Version
	}
	if ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision" && b.Commit == "":
				b.Commit = s.Value
			case s.Key == "vcs.time" && b.Date == "":
				b.Date = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	return b
}
