// Package load is a lean HTTP/1.1 client for benchmarks: one connection, no pool, no allocation per
// request once its buffer has grown. Its own CPU is not counted, as it runs outside the server
// under measurement.
package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// ioTimeout bounds every exchange, so that a server that hangs fails a run and
// does not stall it.
const ioTimeout = 60 * time.Second

// A Client is one keep-alive connection. It must not be used concurrently.
type Client struct {
	addr string
	conn net.Conn
	r    *bufio.Reader
	body []byte
}

// A Response is a complete answer.
type Response struct {
	Status  int
	Session string // Mcp-Session-Id
	Body    []byte // valid until the next exchange
}

// Dial opens a connection.
func Dial(addr string) (*Client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	return &Client{addr: addr, conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Send writes a request and reads nothing.
func (c *Client) Send(req *Request) error {
	if err := c.conn.SetDeadline(time.Now().Add(ioTimeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(req.raw)
	return err
}

// Do sends a request, and reads its complete answer.
func (c *Client) Do(req *Request) (Response, error) {
	if err := c.Send(req); err != nil {
		return Response{}, fmt.Errorf("send: %w", err)
	}
	res, err := c.read()
	if err != nil {
		return Response{}, fmt.Errorf("receive: %w", err)
	}
	return res, nil
}

func (c *Client) read() (Response, error) {
	res, length, chunked, err := c.head()
	if err != nil {
		return Response{}, err
	}
	c.body = c.body[:0]
	switch {
	case chunked:
		err = c.chunks()
	case length > 0:
		err = c.take(length)
	}
	res.Body = c.body
	return res, err
}

// head reads the status line and the header fields.
func (c *Client) head() (res Response, length int, chunked bool, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return res, 0, false, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return res, 0, false, fmt.Errorf("bad status line %q", line)
	}
	if res.Status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return res, 0, false, fmt.Errorf("bad status line: %w", err)
	}
	for {
		line, err = c.r.ReadSlice('\n')
		if err != nil {
			return res, 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return res, length, chunked, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return res, 0, false, fmt.Errorf("bad Content-Length: %w", err)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, []byte("Mcp-Session-Id")):
			res.Session = string(value)
		}
	}
}

// chunks reads a chunked body to its end.
func (c *Client) chunks() error {
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return fmt.Errorf("bad chunk: %w", err)
		}
		if err := c.take(int(size)); err != nil {
			return err
		}
		if _, err := c.r.Discard(len("\r\n")); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}

// take reads n bytes of the body.
func (c *Client) take(n int) error {
	from := len(c.body)
	if cap(c.body)-from < n {
		c.body = append(make([]byte, 0, 2*cap(c.body)+n), c.body...)
	}
	c.body = c.body[:from+n]
	_, err := io.ReadFull(c.r, c.body[from:])
	return err
}

// ErrRefused is wrapped by the error of an answer that is not the expected one.
var ErrRefused = errors.New("refused")

// Expect returns an error unless the answer has the status, and the text in its body.
func (r *Response) Expect(status int, text string) error {
	if r.Status == status && bytes.Contains(r.Body, []byte(text)) {
		return nil
	}
	return fmt.Errorf("%w: want %d with %q, got %d with %.300q", ErrRefused, status, text, r.Status, r.Body)
}
