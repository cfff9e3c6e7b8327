package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A cutter is a proxy that cuts the connection of each answer to a POST behind
// its first event, while it is told to. It passes on all else: what comes back on
// a GET, and what is no event stream.
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

// stop waits for the connections to end: those who have made them end them.
func (c *cutter) stop() {
	_ = c.ln.Close()
	c.work.Wait()
}

// pass is one connection.
func (c *cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	// Whether the last request was a POST: one follows another's answer.
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

// answers passes on what the server says, up to where it is cut.
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
