package pipe

import (
	"bufio"
	"bytes"
	"io"
	"slices"
	"testing"
)

func bufioReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func FuzzParseCall(f *testing.F) {
	whole := callHead{micros: 500_000, procedure: "/imd.internal.v1.StateService/Submit", headers: []string{"a", "b"}}
	f.Add(append(whole.append(nil), "request"...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseCall(b)
		if err != nil {
			return
		}
		again, err := parseCall(append(h.append(nil), h.request...))
		if err != nil || again.micros != h.micros || again.procedure != h.procedure || !slices.Equal(again.headers, h.headers) || !bytes.Equal(again.request, h.request) {
			t.Errorf("%+v became %+v, %v", h, again, err)
		}
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3, kindCall, 1, 7})
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{br: bufio.NewReader(bytes.NewReader(b)), max: 1 << 16}
		for {
			f, err := c.read()
			if err != nil {
				return
			}
			if len(f.body) > 1<<16 {
				t.Error("larger than allowed")
			}
			f.free()
		}
	})
}

func FuzzHello(f *testing.F) {
	h := hello{version: version, key: "01234567", nonce: make([]byte, 16), boot: "b"}
	f.Add(h.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHello(bytes.NewReader(b))
		if err != nil {
			return
		}
		if out := h.append(nil); !bytes.HasPrefix(b, out) {
			t.Errorf("%x became %x", b, out)
		}
	})
}
