package pipe

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"unicode"

	"github.com/imdhq/imd/pkg/peer/seal"
)

const (
	// Path is where a connection begins.
	Path = "/imd.internal.v1.Pipe"
	// upgrade is the name of the protocol.
	upgrade = "imd-pipe"
	// version is that of greetings and frames.
	version = 1
	// maxReason is the most bytes of the reason of a refusal.
	maxReason = 200
)

// errNoKey says that the key of the cluster is not known yet.
var errNoKey = errors.New("pipe: the key of the cluster is not known yet")

// The words of refusals, for metrics.
const (
	wordVersion = "version"
	wordKey     = "key"
	wordProcess = "process"
)

// reasons are the texts of refusals.
var reasons = map[string]string{
	wordVersion: "it speaks another version of the protocol between nodes",
	wordKey:     "the proof is not made with a key of this cluster",
	wordProcess: "another process is at this address now; if it is a loopback address, set peers.advertise to one that other machines reach",
}

// hello is the greeting of a caller.
type hello struct {
	version byte
	key     string // name of the key; "" = TLS
	nonce   []byte
	boot    string // of the process that is meant; "" = whoever is there
}

func (h *hello) append(b []byte) []byte {
	b = append(b, h.version)
	b = append(append(b, byte(len(h.key))), h.key...)
	b = append(b, h.nonce...)
	return append(append(b, byte(len(h.boot))), h.boot...)
}

func readHello(r io.Reader) (h hello, err error) {
	var v [1]byte
	if _, err := io.ReadFull(r, v[:]); err != nil {
		return h, err
	}
	h.version = v[0]
	key, err := short(r)
	if err != nil {
		return h, err
	}
	h.key, h.nonce = string(key), make([]byte, seal.NonceSize)
	if _, err := io.ReadFull(r, h.nonce); err != nil {
		return h, err
	}
	boot, err := short(r)
	h.boot = string(boot)
	return h, err
}

// short reads up to 255 bytes with their number in front.
func short(r io.Reader) ([]byte, error) {
	var n [1]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	b := make([]byte, n[0])
	_, err := io.ReadFull(r, b)
	return b, err
}

// greeted is an open connection and what proves it.
type greeted struct {
	nc      net.Conn
	br      *bufio.Reader
	in, out *seal.Stream
	key     []byte // nil = TLS
}

// request asks for the protocol.
const request = "GET " + Path + " HTTP/1.1\r\nHost: imd\r\nConnection: Upgrade\r\nUpgrade: " + upgrade + "\r\n\r\n"

// greet is the caller's side. keys nil = TLS. Errors: a seal.ErrPeer if the
// two do not believe each other.
func greet(nc net.Conn, keys seal.Keys, boot string) (g greeted, err error) {
	g = greeted{nc: nc, br: bufio.NewReaderSize(nc, readBuffer)}
	h := hello{version: version, nonce: make([]byte, seal.NonceSize), boot: boot}
	if keys != nil {
		if h.key, g.key = keys.First(); g.key == nil {
			return g, errNoKey
		}
		_, _ = rand.Read(h.nonce) // never fails
	}
	if _, err := nc.Write(h.append([]byte(request))); err != nil { // one way there and back is enough
		return g, err
	}
	res, err := http.ReadResponse(g.br, nil)
	if err != nil {
		return g, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		_ = res.Body.Close() // the connection is closed
		return g, fmt.Errorf("pipe: what listens there does not speak the protocol between nodes: %s", printable(res.Status))
	}
	return g.proved(h, keys, boot)
}

// proved reads the greeting of the callee.
func (g greeted) proved(h hello, keys seal.Keys, boot string) (greeted, error) {
	reason, err := short(g.br)
	if err != nil {
		return g, err
	}
	if len(reason) > 0 {
		return g, refused(string(reason))
	}
	if keys == nil {
		return g, nil
	}
	var answer [seal.NonceSize + seal.TagSize]byte
	if _, err := io.ReadFull(g.br, answer[:]); err != nil {
		return g, err
	}
	g.out, g.in = seal.Session(g.key, h.nonce, answer[:seal.NonceSize], boot)
	if !g.in.Check(answer[seal.NonceSize:], h.nonce) {
		return g, seal.ErrPeer("what answers does not show that it belongs to the cluster")
	}
	return g, nil
}

// welcome is the callee's side. The first frame proves the caller. Errors: the
// caller is refused, by word, and has been told; or the connection ended.
func welcome(nc net.Conn, br *bufio.Reader, keys seal.Keys, boot string) (g greeted, word string, err error) {
	g = greeted{nc: nc, br: br}
	h, err := readHello(br)
	if err != nil {
		return g, "", err
	}
	if keys != nil {
		g.key = keys.Named(h.key)
	}
	switch {
	case h.version != version:
		word = wordVersion
	case keys != nil && g.key == nil:
		word = wordKey
	case h.boot != "" && h.boot != boot:
		word = wordProcess
	}
	if word != "" {
		reason := reasons[word]
		_, err := nc.Write(append([]byte{byte(len(reason))}, reason...))
		return g, word, errors.Join(errors.New("pipe: refused: "+reason), err)
	}
	answer := []byte{0}
	if keys != nil {
		nonce := make([]byte, seal.NonceSize)
		_, _ = rand.Read(nonce) // never fails
		g.in, g.out = seal.Session(g.key, h.nonce, nonce, h.boot)
		answer = g.out.Tag(append(answer, nonce...), h.nonce)
	}
	_, err = nc.Write(answer)
	return g, "", err
}

// refused is the error of a caller that is told why it is not answered.
func refused(why string) error { return seal.ErrPeer("the node refuses this one: " + printable(why)) }

// printable is a text of somebody who has proved nothing.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s[:min(len(s), maxReason)])
}
