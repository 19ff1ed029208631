package drill

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/peer/seal"
)

// maxPipeFrame bounds what a liar keeps of a pipe.
const maxPipeFrame = 16 << 20

// pipeLiar is one where calls travel over pipes: it knows frames and not what is in
// them, and cannot prove what it says.
type pipeLiar struct {
	how, target string
	ln          net.Listener
	wg          sync.WaitGroup

	mu    sync.Mutex
	rng   *rand.Rand
	told  int
	conns map[net.Conn]struct{}
	over  bool
}

func newPipeLiar(ln net.Listener, target, how string, rng *rand.Rand) *pipeLiar {
	l := &pipeLiar{how: how, target: target, ln: ln, rng: rng, conns: map[net.Conn]struct{}{}}
	l.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return // closed
			}
			l.wg.Go(func() { l.serve(c) })
		}
	})
	return l
}

func (l *pipeLiar) address() string { return l.ln.Addr().String() }

func (l *pipeLiar) lies() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

func (l *pipeLiar) close() {
	l.ln.Close()
	l.mu.Lock()
	l.over = true
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// keep notes a connection, which close ends; false = it is too late.
func (l *pipeLiar) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[c] = struct{}{}
	return !l.over
}

// serve passes one pipe on.
func (l *pipeLiar) serve(caller net.Conn) {
	defer caller.Close()
	node, err := net.DialTimeout("tcp", l.target, time.Second)
	if err != nil {
		return
	}
	defer node.Close()
	if !l.keep(caller) || !l.keep(node) {
		return
	}
	var up sync.WaitGroup
	up.Go(func() { move(node, caller) })
	_ = l.answers(caller, bufio.NewReader(node)) // the pipe has ended, or was cut
	caller.Close()
	node.Close()
	up.Wait()
	l.mu.Lock()
	delete(l.conns, caller)
	delete(l.conns, node)
	l.mu.Unlock()
}

// answers passes on what the node says: its greeting as it is, then frame by frame.
func (l *pipeLiar) answers(caller net.Conn, in *bufio.Reader) error {
	for line := ""; line != "\r\n"; {
		var err error
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
		if _, err = io.WriteString(caller, line); err != nil {
			return err
		}
	}
	if _, err := io.CopyN(caller, in, 1+seal.NonceSize+seal.TagSize); err != nil { // a refusal ends here
		return err
	}
	var last []byte
	for {
		frame, err := readFrame(in)
		if err != nil {
			return err
		}
		said, late, cut := l.twist(frame, last)
		last = frame
		time.Sleep(late)
		if _, err := caller.Write(said); err != nil {
			return err
		}
		if cut {
			return errors.New("cut")
		}
	}
}

// readFrame reads a frame with its length in front.
func readFrame(in *bufio.Reader) ([]byte, error) {
	head, err := in.Peek(4)
	if err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head)
	if n > maxPipeFrame {
		return nil, errors.New("a frame is too large")
	}
	frame := make([]byte, 4+n)
	_, err = io.ReadFull(in, frame)
	return frame, err
}

// twist is what is said in the place of a frame, how late, and whether the pipe ends then.
func (l *pipeLiar) twist(frame, last []byte) (said []byte, late time.Duration, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rng.Float64() >= lieChance || len(frame) < 6 {
		return frame, 0, false
	}
	said = append([]byte(nil), frame...)
	switch l.how {
	case lieLate:
		late = time.Duration(l.rng.Int64N(int64(latest)))
	case lieStatus: // another kind of frame
		said[4] ^= byte(1 + l.rng.IntN(7))
	case lieCut:
		said, cut = said[:len(said)/2], true
	case lieShort:
		said = said[:5+l.rng.IntN(len(said)-5)]
		binary.BigEndian.PutUint32(said, uint32(len(said)-4))
	case lieMixed:
		if last == nil {
			return frame, 0, false
		}
		said = last
	}
	l.told++
	return said, late, cut
}
