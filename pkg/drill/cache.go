package drill

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/faultproxy"
)

const (
	redisPort = "6379"
	// cacheProcess is how the drill calls it.
	cacheProcess = "redis"
)

// cache is the Redis server of a drill. It keeps nothing over its end.
type cache struct{ server }

// redisMissing says why there is no Redis here; "" = there is.
func redisMissing() string {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return "wants Redis: apt-get install redis-server"
	}
	return ""
}

// newCache makes a server; it does not start it.
func newCache(d *drill) (*cache, error) {
	c := &cache{server{node: d.child(cacheProcess), front: d.front(), address: net.JoinHostPort(loopback(), redisPort), ways: map[string]*faultproxy.Proxy{}}}
	exe, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, err
	}
	c.exe, c.died = exe, d.serverDied
	c.check = func() bool { return c.do("PING") == nil }
	c.args = []string{"--bind", loopback(), "--port", redisPort, "--dir", c.dir, "--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning"}
	return c, os.MkdirAll(c.dir, 0o700)
}

// mixed gives each remembered send the answer of another.
const mixed = `local keys, values = redis.call('KEYS', 'imd:dd:*'), {}
for i, key in ipairs(keys) do values[i] = redis.call('GET', key) end
for i, key in ipairs(keys) do redis.call('SET', key, values[i % #keys + 1], 'KEEPTTL') end
return redis.status_reply('OK')`

// shift moves the server's clock, as the nodes see it.
func (c *cache) shift(by time.Duration) error {
	const script = `for i = 0, 1 do redis.call('SELECT', i) redis.call('SET', KEYS[1], ARGV[1]) end return redis.status_reply('OK')`
	return c.do("EVAL", script, "1", failpoint.RedisClock, fmt.Sprintf("%.0f", by.Seconds()))
}

// closeDoors refuses all who come on their ways, or lets them in.
func (c *cache) closeDoors(closed bool) {
	for _, p := range c.ways {
		p.Set(faultproxy.Mode{Refuse: closed})
	}
}

// do carries out one command.
func (c *cache) do(command ...string) error {
	conn, err := net.DialTimeout("tcp", c.address, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(command))
	for _, word := range command {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(word), word)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "+") {
		err = fmt.Errorf("redis answers %s with %q", command[0], line)
	}
	return err
}

// freeze stops the server where it is, or lets it go on.
func (c *cache) freeze(stop bool) error {
	if stop {
		return c.signal(syscall.SIGSTOP)
	}
	return c.signal(syscall.SIGCONT)
}

// close ends the server.
func (c *cache) close() {
	c.kill()
	c.revive.Wait()
	c.closeWays()
}
