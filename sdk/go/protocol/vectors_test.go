package protocol

import (
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// vector is one envelope of testdata/vectors.txt.
type vector struct {
	toServer bool
	json     []byte
	binary   []byte
}

func vectors(t testing.TB) []vector {
	t.Helper()
	raw, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []vector
	for _, block := range strings.Split(strings.TrimSpace(string(raw)), "\n\n") {
		lines := strings.Split(block, "\n")
		if strings.HasPrefix(lines[0], "#") {
			continue
		}
		last := len(lines) - 1
		bin, err := hex.DecodeString(lines[last])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, vector{
			toServer: lines[0] == ">",
			json:     []byte(strings.Join(lines[1:last], "\n") + "\n"),
			binary:   bin,
		})
	}
	if len(all) != 10 {
		t.Fatalf("%d vectors, want 10", len(all))
	}
	return all
}

// decodeAny decodes an envelope of either direction.
func decodeAny(toServer bool, enc Encoding, data []byte) ([]proto.Message, error) {
	var frames []proto.Message
	if toServer {
		err := DecodeClientEnvelope(enc, data, ServerLimits(enc), func(f *clientv1.ClientFrame) error {
			frames = append(frames, f)
			return nil
		})
		return frames, err
	}
	err := DecodeServerEnvelope(enc, data, ClientLimits(), func(f *clientv1.ServerFrame) error {
		frames = append(frames, f)
		return nil
	})
	return frames, err
}

func encodeAll(t testing.TB, enc Encoding, frames []proto.Message) []byte {
	t.Helper()
	var out []byte
	for _, f := range frames {
		var err error
		if out, err = AppendFrame(out, enc, f); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestVectors(t *testing.T) {
	for i, v := range vectors(t) {
		fromJSON, err := decodeAny(v.toServer, JSON, v.json)
		if err != nil {
			t.Fatalf("%d: JSON: %v", i, err)
		}
		fromBinary, err := decodeAny(v.toServer, Proto, v.binary)
		if err != nil {
			t.Fatalf("%d: binary: %v", i, err)
		}
		if len(fromJSON) != len(fromBinary) {
			t.Fatalf("%d: %d frames in JSON, %d in binary", i, len(fromJSON), len(fromBinary))
		}
		for j := range fromJSON {
			if !proto.Equal(fromJSON[j], fromBinary[j]) {
				t.Errorf("%d.%d: JSON and binary differ:\n%v\n%v", i, j, fromJSON[j], fromBinary[j])
			}
		}
		if got := encodeAll(t, JSON, fromBinary); !bytes.Equal(got, v.json) {
			t.Errorf("%d: JSON:\n%s\nwant\n%s", i, got, v.json)
		}
		if got := encodeAll(t, Proto, fromJSON); !bytes.Equal(got, v.binary) {
			t.Errorf("%d: binary:\n%x\nwant\n%x", i, got, v.binary)
		}
	}
}

func TestPrefixProto(t *testing.T) {
	frame := &clientv1.ServerFrame{Id: 7, Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: "g_1", Seq: 300}}}
	raw, err := proto.Marshal(frame)
	if err != nil {
		t.Fatal(err)
	}
	want, err := EncodeServer(Proto, frame)
	if err != nil {
		t.Fatal(err)
	}
	if got := PrefixProto(raw); !bytes.Equal(got, want) {
		t.Errorf("PrefixProto() = %x, want %x", got, want)
	}
}
