package circuit

import (
	"errors"
	"fmt"
	"testing"
)

func TestCircuit(t *testing.T) {
	var c Circuit
	for _, what := range []Class{Timeout, Connection, "", Timeout, Timeout, Full, Timeout, WrongType, Timeout, Timeout} {
		if c.Called(what) || c.Open() {
			t.Fatal("it opened though there were answers between")
		}
	}
	if !c.Called(Timeout) || !c.Open() {
		t.Fatal("it is closed after three calls without an answer")
	}
	if c.Called(Timeout) || c.Called("") || !c.Open() {
		t.Fatal("calls that were on their way change nothing")
	}
	if c.Asked(false) || !c.Open() {
		t.Fatal("closed without an answer")
	}
	if !c.Asked(true) || c.Open() || c.Asked(true) {
		t.Fatal("it does not close once")
	}
	c.Called(Timeout)
	c.Called(Timeout)
	if c.Open() {
		t.Fatal("it remembers what was before")
	}
	if first := NewOpenCircuit(); !first.Open() {
		t.Fatal("not open")
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("reset")
	err := fmt.Errorf("lookup: %w", &Error{Class: Connection, Err: cause})
	if ClassOf(err) != Connection || !errors.Is(err, cause) || ClassOf(nil) != "" || ClassOf(cause) != Other {
		t.Fatalf("class %q", ClassOf(err))
	}
	if got := (&Error{Class: Open}).Error(); got != "open" {
		t.Fatalf("text %q", got)
	}
}
