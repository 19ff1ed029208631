package pipe

import (
	"encoding/binary"
	"fmt"
)

// maxHeaders bounds the names and values of a call.
const maxHeaders = 64

// callHead is the body of a call: how long it may take in microseconds, 0 = as the
// callee likes; the procedure; headers; then the request.
type callHead struct {
	micros    uint64
	procedure string
	headers   []string // name, value, name, value
	request   []byte
}

func (h *callHead) append(b []byte) []byte {
	b = binary.AppendUvarint(b, h.micros)
	b = appendText(b, h.procedure)
	b = binary.AppendUvarint(b, uint64(len(h.headers)))
	for _, s := range h.headers {
		b = appendText(b, s)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func parseCall(b []byte) (h callHead, err error) {
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = errFrame
			return 0
		}
		b = b[n:]
		return v
	}
	text := func() string {
		n := number()
		if err != nil || n > uint64(len(b)) {
			err = errFrame
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	h.micros, h.procedure = number(), text()
	count := number()
	if err != nil || count > maxHeaders {
		return h, fmt.Errorf("%w: its head", errFrame)
	}
	for range count {
		h.headers = append(h.headers, text())
	}
	h.request = b
	return h, err
}
