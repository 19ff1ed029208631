package testenv

import "testing"

func TestRedis(t *testing.T) {
	r := StartRedis(t)
	r.MustDo("SET", "k", "v")
	if got := r.MustDo("EXISTS", "k"); got != ":1" {
		t.Fatalf("EXISTS %s", got)
	}
	r.MustDo("SET", "k:1", "v", "EX", "60")
	if endless, ending := r.Endless("k"); len(endless) != 1 || endless[0] != "k" || ending != 1 {
		t.Fatalf("endless are %v, and %d end", endless, ending)
	}
	r.RestartEmpty()
	if got := r.MustDo("EXISTS", "k"); got != ":0" {
		t.Fatalf("EXISTS %s after a restart", got)
	}
	r.Pause()
	r.Resume()
	r.Kill()
	if _, err := r.Do("PING"); err == nil {
		t.Fatal("a dead server answers")
	}
}
