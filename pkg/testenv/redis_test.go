package testenv

import "testing"

func TestRedis(t *testing.T) {
	r := StartRedis(t)
	r.MustDo("SET", "k", "v")
	if got := r.MustDo("EXISTS", "k"); got != ":1" {
		t.Fatalf("EXISTS %s", got)
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
