package protocol

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
)

func FuzzDecodeClient(f *testing.F) { fuzzDecode(f, true) }

func FuzzDecodeServer(f *testing.F) { fuzzDecode(f, false) }

// fuzzDecode: no input panics, every refusal is a FrameError, and what is
// accepted is the same after another round through both encodings.
func fuzzDecode(f *testing.F, toServer bool) {
	for _, v := range vectors(f) {
		f.Add(true, v.json)
		f.Add(false, v.binary)
	}
	for _, s := range []string{
		"{}", "{\"id\":1}\n\n{}", `{"id":1,"zzz":[1,{"a":null}]}`, `{"pong":{}} x`, nested(64), nested(65),
		`{"a":"\ud83d\ude00"}`, `{"a":"\ud83d"}`, `{"id":9007199254740993}`, `{"id":1,"id":2}`, `{"a":-1.5e-3}`,
		`{"send":{"conversation_id":"x","content":{"data":"AAE=","attributes":{"k":"v"}}}}`,
	} {
		f.Add(true, []byte(s))
	}
	for _, b := range [][]byte{{0}, {0x80}, {2, 0x5a, 0}, {5, 0x42, 3, 0x0a, 1, 0xff}, {0xff, 0xff, 0xff, 0xff, 0x0f}} {
		f.Add(false, b)
	}
	f.Fuzz(func(t *testing.T, text bool, data []byte) {
		enc := Proto
		if text {
			enc = JSON
		}
		frames, err := decodeAny(toServer, enc, data)
		if err != nil && AsFrameError(err) == nil {
			t.Fatalf("not a FrameError: %v", err)
		}
		for _, want := range frames {
			for _, enc := range []Encoding{Proto, JSON} {
				again := encodeAll(t, enc, []proto.Message{want})
				if enc == JSON && Size(JSON, want)+1 != len(again) {
					t.Fatalf("Size() = %d for %s", Size(JSON, want), again)
				}
				var got []proto.Message
				if len(again) <= enc.MaxEnvelope() {
					if got, err = decodeAny(toServer, enc, again); err != nil || len(got) != 1 {
						t.Fatalf("%v: %d frames, %v, from %q", enc, len(got), err, again)
					}
					if !proto.Equal(got[0], want) {
						t.Fatalf("%v: %v came back as %v", enc, want, got[0])
					}
					if !bytes.Equal(encodeAll(t, JSON, got), encodeAll(t, JSON, []proto.Message{want})) {
						t.Fatalf("%v: not deterministic", enc)
					}
				}
			}
		}
	})
}
