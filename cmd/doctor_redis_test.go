package cmd

import (
	"errors"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestJudgeRedis(t *testing.T) {
	good := redis.Facts{Version: "7.0.15", Role: "master", Policy: "noeviction", RoundTrip: 40 * time.Microsecond}
	old, replica, evicts, slow := good, good, good, good
	old.Version, replica.Role, evicts.Policy, slow.RoundTrip = "5.0.7", "slave", "allkeys-lru", 3*time.Millisecond
	for name, tt := range map[string]struct {
		facts   redis.Facts
		err     error
		check   string
		verdict etcd.Verdict
	}{
		"old":     {old, nil, "redis version", etcd.Failing},
		"replica": {replica, nil, "redis role", etcd.Failing},
		"evicts":  {evicts, nil, "redis eviction", etcd.Doubt},
		"slow":    {slow, nil, "redis latency", etcd.Doubt},
		"away":    {good, &dedup.Error{Class: dedup.Connection, Err: errors.New("refused")}, "redis reach", etcd.Failing},
		"login":   {good, &dedup.Error{Class: dedup.Refused}, "redis reach", etcd.Failing},
	} {
		bad := 0
		for _, f := range judgeRedis(tt.facts, tt.err) {
			if f.Verdict == etcd.Good {
				continue
			}
			if bad++; f.Check != tt.check || f.Verdict != tt.verdict || f.Fix == "" {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if bad != 1 {
			t.Errorf("%s: %d findings that are not good", name, bad)
		}
	}
	for _, f := range judgeRedis(good, nil) {
		if f.Verdict != etcd.Good {
			t.Errorf("of a sound one: %+v", f)
		}
	}
}

func TestExamineRedis(t *testing.T) {
	r := testenv.StartRedis(t)
	f, err := redis.Examine(t.Context(), redis.Config{URL: r.URL()})
	if err != nil || f.Version == "" || f.Role != "master" || f.Policy != "noeviction" || f.RoundTrip <= 0 {
		t.Fatalf("facts %+v, %v", f, err)
	}
	r.Kill()
	if _, err := redis.Examine(t.Context(), redis.Config{URL: r.URL()}); dedup.ClassOf(err) != dedup.Connection {
		t.Fatalf("of a dead one: %v", err)
	}
}
