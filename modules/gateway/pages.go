package gateway

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// pagesKept is how many pages are remembered, with what was made of them.
const pagesKept = 8

// pages makes frames of pages of history. A page that state hands to many, as
// when all members of a large group read the same entries, is encoded once. Safe
// for concurrent use.
type pages struct {
	mu   sync.Mutex
	next int
	kept [pagesKept]*keptPage
}

// keptPage is a page that was seen, and is encoded when it is seen again.
type keptPage struct {
	page *clientv1.Page // shared and read only
	made [2]struct {    // by encoding: the frame without an id
		once sync.Once
		data []byte
		err  error
	}
}

// frame makes the answer to the request id.
func (p *pages) frame(enc protocol.Encoding, id uint32, r *clientv1.HistoryResult) ([]byte, error) {
	f := &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_HistoryResult{HistoryResult: r}}
	k := p.again(r.Page)
	if k == nil {
		f.Id = id
		return protocol.EncodeServer(enc, f)
	}
	m := &k.made[enc]
	m.once.Do(func() { m.data, m.err = protocol.EncodeServer(enc, f) })
	if m.err != nil {
		return nil, m.err
	}
	return withID(enc, id, m.data)
}

// again notes that a page is answered; nil = for the first time, as far as is known.
func (p *pages) again(page *clientv1.Page) *keptPage {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.kept {
		if k != nil && k.page == page {
			return k
		}
	}
	p.kept[p.next] = &keptPage{page: page}
	p.next = (p.next + 1) % pagesKept
	return nil
}

var errNoFrame = errors.New("no frame")

// withID copies an encoded frame that has no id, with one.
func withID(enc protocol.Encoding, id uint32, frame []byte) ([]byte, error) {
	if id == 0 {
		return slices.Clone(frame), nil
	}
	if enc == protocol.JSON {
		if len(frame) < 2 || frame[0] != '{' {
			return nil, errNoFrame
		}
		out := append(make([]byte, 0, len(frame)+16), `{"id":`...)
		out = strconv.AppendUint(out, uint64(id), 10)
		return append(append(out, ','), frame[1:]...), nil
	}
	n, skip := binary.Uvarint(frame)
	if skip <= 0 || int(n) != len(frame)-skip {
		return nil, errNoFrame
	}
	const field = 1 // of ServerFrame.id
	size := protowire.SizeTag(field) + protowire.SizeVarint(uint64(id))
	out := binary.AppendUvarint(make([]byte, 0, len(frame)+size+binary.MaxVarintLen32), n+uint64(size))
	out = protowire.AppendVarint(protowire.AppendTag(out, field, protowire.VarintType), uint64(id))
	return append(out, frame[skip:]...), nil
}
