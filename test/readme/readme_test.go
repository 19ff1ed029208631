package readme

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// block is a fenced piece of the page.
type block struct{ lang, text string }

var fenceRE = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// blocks gives the fenced pieces of a section of README.md.
func blocks(t *testing.T, section string) []block {
	t.Helper()
	return blocksOf(t, "README.md", section)
}

func blocksOf(t *testing.T, file, section string) []block {
	t.Helper()
	page, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\n## "+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %q", file, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var out []block
	for _, m := range fenceRE.FindAllStringSubmatch(rest, -1) {
		out = append(out, block{m[1], m[2]})
	}
	return out
}

// only is the one block of a language.
func only(t *testing.T, all []block, lang string) string {
	t.Helper()
	var found []string
	for _, b := range all {
		if b.lang == lang {
			found = append(found, b.text)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of %s, want one", len(found), lang)
	}
	return found[0]
}

// clone is a folder that looks like a clone after `make run`: bin/imd is there,
// and a development server runs on the folder data.
type clone struct {
	t    *testing.T
	dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
	log  bytes.Buffer
}

func newClone(t *testing.T, args ...string) *clone {
	t.Helper()
	c := &clone{t: t, dir: t.TempDir(), args: args}
	if err := os.Mkdir(filepath.Join(c.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := filepath.Abs(testenv.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(c.dir, "bin/imd")); err != nil {
		t.Fatal(err)
	}
	return c
}

// run starts the server, unless it runs, and waits until it is ready.
func (c *clone) run() {
	c.t.Helper()
	if c.done != nil {
		select {
		case <-c.done:
		default:
			return
		}
	}
	args := append([]string{"dev", "--data-dir", "./data", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"}, c.args...)
	c.cmd = exec.Command("bin/imd", args...)
	c.cmd.Dir, c.cmd.Stderr = c.dir, &c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	done, cmd := make(chan struct{}), c.cmd
	c.done = done
	go func() { defer close(done); _ = cmd.Wait() }()
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(testenv.ReadyIn); time.Now().Before(end); {
		if c.ready() {
			return
		}
		select {
		case <-done:
			c.t.Fatalf("the server ended\n%s", c.log.String())
		case <-tick.C:
		}
	}
	c.t.Fatal("the server is not ready")
}

func (c *clone) ready() bool {
	p, err := datadir.ReadEndpoints(filepath.Join(c.dir, "data"))
	if err != nil || p.PID != c.cmd.Process.Pid {
		return false
	}
	res, err := http.Get("http://" + p.Ops + "/readyz")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// stop stops the server in order.
func (c *clone) stop() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Fatal(err)
	}
	c.gone()
}

// gone waits until a killed server has ended.
func (c *clone) gone() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(time.Minute):
		c.t.Fatal("the server still runs")
	}
}

// here puts the test's ports where the page has the usual ones.
func (c *clone) here(text string) string {
	p, err := datadir.ReadEndpoints(filepath.Join(c.dir, "data"))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.NewReplacer("127.0.0.1:8420", p.Public, "127.0.0.1:8421", p.Ops).Replace(text)
}

// command is a program in the clone's folder, with bin on the search path as
// after the first block.
func (c *clone) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "IMD_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "PATH="+filepath.Join(c.dir, "bin")+":"+os.Getenv("PATH"), "IMD_DATA_DIR="+filepath.Join(c.dir, "data"))
	return cmd
}

// shell is the reader's second terminal.
type shell struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func (c *clone) shell() *shell {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute) // only ends what would hang
	cmd := exec.CommandContext(ctx, "bash", "-eu")
	cmd.Dir, cmd.Env = c.dir, c.command(ctx, "bash").Env
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout // what a terminal shows is both
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait(); cancel() })
	return &shell{c.t, in, bufio.NewReader(out)}
}

const end = "== end of the block"

// run types the commands and returns what appears until they are done.
func (s *shell) run(commands string) string {
	s.t.Helper()
	fmt.Fprintf(s.in, "{\n%s\n} </dev/null\nprintf '\n%%s\n' '%s'\n", commands, end)
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if strings.TrimSpace(line) == end {
			return strings.TrimSuffix(out.String(), "\n")
		}
		if out.WriteString(line); err != nil {
			s.t.Fatalf("%s\nended with\n%s", commands, out.String())
		}
	}
}

// varying is what is different each time, and what it becomes.
var varying = []struct {
	re   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UUID"},
	{regexp.MustCompile(`\bg_[0-9]+`), "GROUP"},
	{regexp.MustCompile(`\b[0-9]{13,}\b`), "NUMBER"},
	{regexp.MustCompile(`\b[0-9]+\.[0-9] ms`), "TIME"},
	{regexp.MustCompile(`(?m)^[0-9]{2}:[0-9]{2}:[0-9]{2} `), "TIME "},
	{regexp.MustCompile(`\bkey [a-z0-9]{16}\b`), "key KEY"},
	{regexp.MustCompile(`"ey[^"]+"`), `"TOKEN"`},
	{regexp.MustCompile(`, "`), `,"`},
	{regexp.MustCompile(`(?m)^connected\n`), ""}, // comes from the side, at any moment
}

func leveled(text string) string {
	for _, v := range varying {
		text = v.re.ReplaceAllString(text, v.name)
	}
	return strings.TrimSpace(text)
}

// The first five minutes go as the page says.
func TestFirstFiveMinutes(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	c.run()
	sh := c.shell()
	all := blocks(t, "First five minutes")
	if len(all) < 8 {
		t.Fatalf("only %d blocks", len(all))
	}
	got := ""
	for i, b := range all {
		switch b.lang {
		case "sh":
			c.run()
			got = sh.run(c.here(b.text))
			if strings.HasPrefix(b.text, "kill ") {
				c.gone()
			}
		case "text":
			if have, want := leveled(got), leveled(b.text); have != want {
				t.Errorf("block %d prints\n%s\nand the page says\n%s", i+1, have, want)
			}
		default:
			t.Errorf("block %d is of %q", i+1, b.lang)
		}
	}
}

// The echo bot answers.
func TestEchoBot(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	c.run()
	source := filepath.Join(c.dir, "main.go")
	if err := os.WriteFile(source, []byte(only(t, blocks(t, "A program of your own"), "go")), 0o600); err != nil {
		t.Fatal(err)
	}
	sdk, err := filepath.Abs("../../sdk/go")
	if err != nil {
		t.Fatal(err)
	}
	// The bot stands in the SDK's folder for the compiler only.
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(sdk, "echo/main.go"): source}})
	if err != nil {
		t.Fatal(err)
	}
	overlayFile := filepath.Join(c.dir, "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // only ends what would hang
	defer cancel()
	program := filepath.Join(c.dir, "echo")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-overlay", overlayFile, "-o", program, "./echo")
	build.Dir = sdk
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as all that is built here, for one compile
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the bot does not build: %v\n%s", err, out)
	}

	sh := c.shell()
	// The line of the page as it stands: its variables are there for the command
	// in it, too.
	start, _, _ := strings.Cut(only(t, blocks(t, "A program of your own"), "console"), "\n")
	start, ok := strings.CutPrefix(start, "$ cd sdk/go && ")
	if !ok || !strings.HasSuffix(start, "go run ./echo") {
		t.Fatalf("the page starts the bot with %q", start)
	}
	bot := c.command(ctx, "sh", "-c", strings.Replace(c.here(start), "go run ./echo", "exec "+program, 1))
	errOut, err := bot.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bot.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bot.Process.Kill(); _ = bot.Wait() }()
	if line, err := bufio.NewReader(errOut).ReadString('\n'); err != nil || !strings.HasSuffix(line, "online as echo\n") {
		t.Fatalf("the bot says %q, %v", line, err)
	}
	sh.run("imd send --as alice --to echo anybody there")
	if got := sh.run("imd tail --as alice --to echo --after 0 --count 2"); !strings.HasSuffix(got, "#2  echo: you said: anybody there\n") {
		t.Errorf("the conversation is\n%s", got)
	}
}

// Tokens that a backend signs as the page shows are good, in three languages.
func TestTokensOfABackend(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	all := blocks(t, "From the demo to your product")
	c.shell().run(only(t, all, "sh"))
	key := filepath.Join(c.dir, "backend.key")
	config := strings.ReplaceAll(only(t, all, "yaml"), "/etc/imd/backend.key", key)
	if err := os.WriteFile(filepath.Join(c.dir, "imd.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.args = []string{"--config", "imd.yaml"}
	c.run()
	for _, lang := range []struct{ name, file, install string }{
		{"python", "python3", "apt-get install python3"}, {"js", "node", "apt-get install nodejs"}, {"go", "go", "install Go"},
	} {
		t.Run(lang.name, func(t *testing.T) {
			if _, err := exec.LookPath(lang.file); err != nil {
				testenv.Omit(t, "tokens made by "+lang.file, lang.install)
			}
			file := filepath.Join(c.dir, "token."+lang.name)
			if err := os.WriteFile(file, []byte(only(t, all, lang.name)), 0o600); err != nil {
				t.Fatal(err)
			}
			args := []string{file}
			if lang.name == "go" {
				args = []string{"run", file}
			}
			out, err := c.command(t.Context(), lang.file, args...).Output()
			if err != nil {
				t.Fatalf("%v %v", err, string(out))
			}
			token := strings.TrimSpace(string(out))
			testenv.MustPost(t, c.here("http://127.0.0.1:8420"), "imd.v1.ConversationService/List", token, map[string]any{})
			verify, err := c.command(t.Context(), filepath.Join(c.dir, "bin/imd"), "token", "verify", "--config", "imd.yaml", token).Output()
			if err != nil || !strings.Contains(string(verify), `"alice"`) {
				t.Errorf("verify says %v\n%s", err, verify)
			}
		})
	}
}

// A backup taken and restored as docs/operations.md says has what was there,
// and clients are told of another history. What is made anew may be missing.
func TestBackup(t *testing.T) {
	t.Parallel()
	all := blocksOf(t, "docs/operations.md", "Back up and restore")
	if len(all) != 3 {
		t.Fatalf("%d blocks, want three: back up, restore, begin a new history", len(all))
	}
	c := newClone(t)
	here := strings.NewReplacer("/var/lib/imd/main", "data", "/backup/imd-2026-01-31.tar", "imd-*.tar", "/backup/", "")
	c.run()
	sh := c.shell()
	sh.run("imd send --as alice --to bob kept")
	sh.run(here.Replace(all[0].text))
	sh.run("imd send --as alice --to bob lost by the restore")
	before := c.epoch()
	c.stop()
	sh.run(here.Replace(all[1].text))
	if err := os.RemoveAll(filepath.Join(c.dir, "data/etcd")); err != nil {
		t.Fatal(err)
	}
	c.run()
	restored := c.epoch()
	if restored == before {
		t.Errorf("the data_epoch is %s as before", restored)
	}
	c.stop()
	sh.run(here.Replace(all[2].text))
	c.run()
	if after := c.epoch(); after == restored {
		t.Errorf("the data_epoch is %s as before", after)
	}
	sh.run("imd send --as alice --to bob new")
	if got := leveled(sh.run("imd tail --as bob --to alice --after 0 --count 2")); !strings.HasSuffix(got, "#1  alice: kept\nTIME  d_mvjrvdxp5j5zg2j2n6ar37gxia #2  alice: new") {
		t.Errorf("afterwards the conversation is\n%s", got)
	}
}

// epoch is the data_epoch that a new session is told.
func (c *clone) epoch() string {
	c.t.Helper()
	token, epoch := strings.TrimSpace(c.shell().run("imd token mint --user eve")), ""
	c.t.Run("a session", func(t *testing.T) { // which ends with it
		epoch = testenv.Login(t, c.here("http://127.0.0.1:8420"), protocol.JSON, token, "d").Welcome.DataEpoch
	})
	return epoch
}
