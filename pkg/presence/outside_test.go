package presence

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// Those outside hear of what differs from what they believe, and nothing before all
// gateways have told what they have.
func TestThoseOutsideHearOfChanges(t *testing.T) {
	s := newStage(t, "g1")
	s.list("g1", "g2")
	s.report("g1", began("anna", "s1", 1, im.Web), began("bob", "s2", 1, im.Web))
	s.pass(time.Second)
	s.turned()
	s.step(Told{First: true, Users: []im.UserID{"anna"}})
	s.step(Told{Last: true, Users: []im.UserID{"carl", "dora"}})
	s.pass(time.Second)
	s.turned()
	s.step(Report{Home: at("g2"), First: true, Last: true, Changes: []Change{began("dora", "s3", 1, im.Web)}})
	s.pass(TickTime)
	s.turned("+bob", "-carl")
	if s.c.users["carl"] != nil {
		t.Error("carl is not forgotten")
	}

	for range 5 { // comes and goes, which nobody sees
		s.report("g1", s.ended("bob", "s2", false))
		s.report("g1", began("bob", "s4", 2, im.Web))
		s.report("g1", s.ended("bob", "s4", false))
		s.report("g1", began("bob", "s2", 3, im.Web))
		s.pass(TickTime)
	}
	s.report("g1", began("bob", "s5", 4, im.Phone)) // another class
	s.pass(time.Second)
	s.turned()
	left := s.now
	s.report("g1", s.ended("anna", "s1", false))
	s.pass(time.Second)
	s.turned("-anna")
	if got := s.saved["anna"]; !got.Equal(left) {
		t.Errorf("anna left %v, want %v", got, left)
	}

	s.step(Told{First: true}) // all is learned anew
	s.report("g1", began("emma", "s6", 1, im.Web))
	s.pass(time.Second)
	s.turned()
	s.step(Told{Last: true, Users: []im.UserID{"anna", "bob"}})
	s.pass(TickTime)
	s.turned("+dora", "+emma", "-anna")
}

// Nobody outside hears of anything unless it was said what they believe.
func TestNobodyOutsideIsTold(t *testing.T) {
	s := newStage(t, "g1")
	s.report("g1", began("anna", "s1", 1, im.Web))
	s.pass(time.Second)
	s.report("g1", s.ended("anna", "s1", false))
	s.pass(time.Second)
	s.turned()
}
