package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A cutter is a proxy that, while on is set, cuts the connection of each event stream that answers
// a POST, after its first event. It passes on the answers to GETs, and those that are not event
// streams.
type cutter struct {
	ln   net.Listener
	to   string
	on   atomic.Bool
	cuts atomic.Int64
	work sync.WaitGroup
}

func newCutter(to string) (*cutter, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	c := &cutter{ln: ln, to: to}
	c.work.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { c.pass(client) })
		}
	})
	return c, nil
}

func (c *cutter) addr() string { return c.ln.Addr().String() }

// stop waits for the connections to end, which the clients end.
func (c *cutter) stop() {
	_ = c.ln.Close()
	c.work.Wait()
}

// pass carries one connection.
func (c *cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	// Whether the last request was a POST: each request follows the answer to the one before.
	var post atomic.Bool
	c.work.Go(func() {
		defer server.Close()
		buf := make([]byte, 16<<10)
		for {
			n, err := client.Read(buf)
			switch {
			case bytes.HasPrefix(buf[:n], []byte("POST ")):
				post.Store(true)
			case bytes.HasPrefix(buf[:n], []byte("GET ")):
				post.Store(false)
			}
			if _, werr := server.Write(buf[:n]); err != nil || werr != nil {
				return
			}
		}
	})
	c.answers(client, server, &post)
}

// answers passes on the server's answers, up to the cut.
func (c *cutter) answers(w io.Writer, server io.Reader, post *atomic.Bool) {
	buf := make([]byte, 16<<10)
	var stream bool
	for {
		n, err := server.Read(buf)
		part := buf[:n]
		if bytes.HasPrefix(part, []byte("HTTP/1.1 ")) {
			head, _, _ := bytes.Cut(part, []byte("\r\n\r\n"))
			stream = bytes.Contains(head, []byte("text/event-stream"))
		}
		if stream && c.on.Load() && post.Load() {
			if at := bytes.Index(part, []byte("\n\n")); at >= 0 {
				_, _ = w.Write(part[:at+2])
				c.cuts.Add(1)
				return
			}
		}
		if _, werr := w.Write(part); err != nil || werr != nil {
			return
		}
	}
}
