package seal

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"unicode"
)

const (
	// toHeader names the process, by its boot id, that a request is for.
	toHeader = "Imd-To"
	// refusedHeader marks answers that are no answers of the method that was called.
	refusedHeader = "Imd-Refused"
	// maxRefusal is the most bytes that are read of a refusal.
	maxRefusal = 4096
)

// ErrPeer says that two nodes do not believe each other: their keys or their
// clocks differ, the roles of a certificate do not allow the call, or another
// process answers at the address.
type ErrPeer string

// Error says why.
func (e ErrPeer) Error() string { return string(e) }

// Address makes a transport whose requests are for the process with the boot id
// boot, so that another one that answers at the same address says so; "" = for
// whoever is there. It knows a refusal from an answer.
func Address(next http.RoundTripper, boot string) http.RoundTripper { return address{next, boot} }

type address struct {
	next http.RoundTripper
	boot string
}

// RoundTrip sends the request. Errors: ErrPeer if it was refused.
func (a address) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.boot != "" {
		r = r.Clone(r.Context())
		r.Header.Set(toHeader, a.boot)
	}
	res, err := a.next.RoundTrip(r)
	if err != nil || res.Header.Get(refusedHeader) == "" {
		return res, err
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRefusal))
	if cerr := res.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return nil, ErrPeer("the node refuses this one: " + refusal(body))
}

// Misdirected reports whether a request is for another process than the one with
// the boot id boot.
func Misdirected(r *http.Request, boot string) bool {
	to := r.Header.Get(toHeader)
	return to != "" && to != boot
}

// Refuse marks an answer as a refusal. Before its status is written.
func Refuse(w http.ResponseWriter) { w.Header().Set(refusedHeader, "1") }

// refusal is the reason in the body of a refusal; for people, as nobody may have
// signed it.
func refusal(body []byte) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &e) != nil || e.Message == "" || len(e.Message) > 200 {
		return "it does not say why"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, e.Message)
}
