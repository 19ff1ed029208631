package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Encoding is how frames are written. The zero value is Proto.
type Encoding uint8

const (
	// Proto is the binary encoding: binary messages, frames with a length.
	Proto Encoding = iota
	// JSON is the text encoding: text messages, one object a line.
	JSON
)

// The subprotocols of the WebSocket handshake.
const (
	SubprotocolProto = "imd.v1.proto"
	SubprotocolJSON  = "imd.v1.json"
)

// Subprotocol returns the encoding's name in the WebSocket handshake.
func (e Encoding) Subprotocol() string {
	if e == JSON {
		return SubprotocolJSON
	}
	return SubprotocolProto
}

// String returns "proto" or "json".
func (e Encoding) String() string {
	if e == JSON {
		return "json"
	}
	return "proto"
}

// MaxEnvelope returns the largest envelope a server takes in this encoding, in
// bytes.
func (e Encoding) MaxEnvelope() int {
	if e == JSON {
		return MaxTextEnvelope
	}
	return MaxBinaryEnvelope
}

// EncodingOf returns the encoding of a subprotocol; ok is false for an unknown
// one.
func EncodingOf(subprotocol string) (e Encoding, ok bool) {
	switch subprotocol {
	case SubprotocolProto:
		return Proto, true
	case SubprotocolJSON:
		return JSON, true
	}
	return Proto, false
}

// Select returns the first subprotocol of a client's list that is known, as
// the handshake wants it; ok is false if none is.
func Select(offered []string) (e Encoding, ok bool) {
	for _, name := range offered {
		if e, ok = EncodingOf(name); ok {
			return e, true
		}
	}
	return Proto, false
}

// AppendFrame appends one frame to an envelope and returns the longer
// envelope. frame is a *clientv1.ClientFrame or *clientv1.ServerFrame. An
// error means a string that is not UTF-8; dst is then returned unchanged.
func AppendFrame(dst []byte, enc Encoding, frame proto.Message) ([]byte, error) {
	if enc == JSON {
		out, err := appendJSON(dst, frame.ProtoReflect())
		if err != nil {
			return dst, err
		}
		return append(out, '\n'), nil
	}
	opts := proto.MarshalOptions{}
	n := opts.Size(frame)
	opts.UseCachedSize = true
	dst = slices.Grow(dst, binary.MaxVarintLen32+n) // at once, with the length before it
	out, err := opts.MarshalAppend(binary.AppendUvarint(dst, uint64(n)), frame)
	if err != nil {
		return dst, fmt.Errorf("encode frame: %w", err)
	}
	return out, nil
}

// EncodeServer returns one server frame, ready to be concatenated with others
// to an envelope and shared by all its receivers. Errors as AppendFrame.
func EncodeServer(enc Encoding, frame *clientv1.ServerFrame) ([]byte, error) {
	return AppendFrame(nil, enc, frame)
}

// EncodeClient is EncodeServer for a client frame.
func EncodeClient(enc Encoding, frame *clientv1.ClientFrame) ([]byte, error) {
	return AppendFrame(nil, enc, frame)
}

// PrefixProto makes a binary envelope of one frame out of its marshalled
// protobuf bytes.
func PrefixProto(frame []byte) []byte {
	out := make([]byte, 0, len(frame)+binary.MaxVarintLen32)
	return append(binary.AppendUvarint(out, uint64(len(frame))), frame...)
}

// Size returns how many bytes m takes in an encoding, without the frame's
// length or line end.
func Size(enc Encoding, m proto.Message) int {
	if enc == JSON {
		return sizeJSON(m.ProtoReflect())
	}
	return proto.Size(m)
}

// Fault says why an envelope was refused.
type Fault uint8

const (
	// BadFrame is input that cannot be decoded: close with 4500 bad_frame.
	BadFrame Fault = iota + 1
	// TooLarge is an envelope above the limit: close with 1009.
	TooLarge
	// BadText is a text message that is not UTF-8: close with 1007.
	BadText
)

// FrameError is an envelope that cannot be decoded. What came before it in the
// envelope has been yielded; nothing behind it is.
type FrameError struct {
	Fault  Fault
	Detail string // for people: what is wrong
}

// Error says what is wrong.
func (e *FrameError) Error() string { return "frame: " + e.Detail }

// CloseCode returns the close code that answers the error.
func (e *FrameError) CloseCode() int {
	switch e.Fault {
	case TooLarge:
		return CloseTooBig
	case BadText:
		return CloseBadText
	}
	return CloseCode("bad_frame")
}

func badFrame(format string, args ...any) *FrameError {
	return &FrameError{Fault: BadFrame, Detail: fmt.Sprintf(format, args...)}
}

// Limits bounds an envelope. A zero field is not checked.
type Limits struct {
	Bytes  int // of the envelope
	Frames int // in the envelope
}

// ServerLimits returns what a server keeps to when it reads.
func ServerLimits(enc Encoding) Limits {
	return Limits{Bytes: enc.MaxEnvelope(), Frames: MaxClientFrames}
}

// ClientLimits returns what a client keeps to when it reads.
func ClientLimits() Limits { return Limits{Bytes: ClientReadLimit} }

// DecodeClientEnvelope decodes an envelope from a device and calls yield for
// each frame, in order. A frame without a kind that is known is yielded with a
// nil Kind. Unknown fields are dropped. The frames share no memory with data.
//
// It returns a *FrameError for what cannot be decoded, or the first error of
// yield as it is.
func DecodeClientEnvelope(enc Encoding, data []byte, limits Limits, yield func(*clientv1.ClientFrame) error) error {
	return decodeEnvelope(enc, data, limits, func() *clientv1.ClientFrame { return new(clientv1.ClientFrame) }, yield)
}

// DecodeServerEnvelope is DecodeClientEnvelope for an envelope from a server.
func DecodeServerEnvelope(enc Encoding, data []byte, limits Limits, yield func(*clientv1.ServerFrame) error) error {
	return decodeEnvelope(enc, data, limits, func() *clientv1.ServerFrame { return new(clientv1.ServerFrame) }, yield)
}

func decodeEnvelope[F proto.Message](enc Encoding, data []byte, limits Limits, fresh func() F, yield func(F) error) error {
	if limits.Bytes > 0 && len(data) > limits.Bytes {
		return &FrameError{Fault: TooLarge, Detail: fmt.Sprintf("envelope of %d bytes, at most %d are taken", len(data), limits.Bytes)}
	}
	next, decode := cutProto, decodeProto
	if enc == JSON {
		if err := checkText(data); err != nil {
			return err
		}
		next, decode = cutJSON, decodeJSON
	}
	for n := 1; ; n++ {
		raw, rest, ok, err := next(data)
		if err != nil || !ok {
			return err
		}
		data = rest
		if limits.Frames > 0 && n > limits.Frames {
			return badFrame("more than %d frames in one envelope", limits.Frames)
		}
		frame := fresh()
		if err := decode(raw, frame); err != nil {
			return err
		}
		if err := yield(frame); err != nil {
			return err
		}
	}
}

// cutProto takes the next frame off a binary envelope; ok is false at its end.
func cutProto(data []byte) (raw, rest []byte, ok bool, err error) {
	if len(data) == 0 {
		return nil, nil, false, nil
	}
	n, used := binary.Uvarint(data[:min(len(data), 5)])
	if used <= 0 {
		return nil, nil, false, badFrame("broken length")
	}
	data = data[used:]
	if n > uint64(len(data)) {
		return nil, nil, false, badFrame("length %d, but %d bytes follow", n, len(data))
	}
	return data[:n], data[n:], true, nil
}

// Nesting is bounded far below protobuf's own limit.
var unmarshalProto = proto.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: MaxNesting}

func decodeProto(raw []byte, into proto.Message) error {
	if err := unmarshalProto.Unmarshal(raw, into); err != nil {
		return badFrame("protobuf: %v", err)
	}
	return nil
}

// AsFrameError returns the *FrameError in err's chain, or nil.
func AsFrameError(err error) *FrameError {
	var fe *FrameError
	if errors.As(err, &fe) {
		return fe
	}
	return nil
}
