// Command slow passes connections on and holds back what comes from the other
// end, each piece for the same time. It stands in front of a node whose answers
// shall be late; nothing becomes fewer or changes its order.
//
//	slow LISTEN TARGET DELAY
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: slow LISTEN TARGET DELAY")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "slow:", serve(os.Args[1], os.Args[2], os.Args[3]))
	os.Exit(1)
}

// serve returns why it cannot go on.
func serve(listen, target, delay string) error {
	d, err := time.ParseDuration(delay)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		near, err := ln.Accept()
		if err != nil {
			return err
		}
		go pass(near, target, d)
	}
}

// pass connects and copies both ways until one end closes.
func pass(near net.Conn, target string, delay time.Duration) {
	far, err := net.Dial("tcp", target)
	if err != nil {
		_ = near.Close() // who called sees that nobody is there
		return
	}
	go func() {
		_, _ = io.Copy(far, near) // it ends when one end does
		_ = far.Close()
	}()
	late(near, far, delay)
	_ = near.Close()
	_ = far.Close()
}

// piece is what was read, and when it may go on.
type piece struct {
	bytes []byte
	due   time.Time
}

// late copies with the delay.
func late(dst io.Writer, src io.Reader, delay time.Duration) {
	pieces := make(chan piece, 1024) // more than that, and src waits too
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 16<<10)
			n, err := src.Read(b)
			if n > 0 {
				pieces <- piece{b[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.due))
		if _, err := dst.Write(p.bytes); err != nil {
			for range pieces { // so that the reader ends
			}
			return
		}
	}
}
