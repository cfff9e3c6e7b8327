package watch

import (
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"testing"
	"time"

	_ "holdfast/internal/testlong"
)

// heard is a source that gets the addresses of clients that have left.
type heard chan string

func (h heard) Disconnected(from string, _ time.Time) { h <- from }

// pair returns a watched connection, and its client's end.
func pair(t *testing.T, cs *Connections) (here net.Conn, client *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	here, err = cs.Listener(l).Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = here.Close(), c.Close() })
	return here, c.(*net.TCPConn)
}

// The last source, and no earlier one, gets the address of a client that has left with bytes unread.
func TestReset(t *testing.T) {
	t.Parallel()
	var cs Connections
	here, client := pair(t, &cs)
	r := &http.Request{ProtoMajor: 1, RemoteAddr: client.LocalAddr().String()}
	c := cs.At(r)
	if c == nil || c.Gone() {
		t.Fatalf("watched: %v", c)
	}
	before, last := make(heard, 1), make(heard, 2)
	c.Wrote(before)
	c.Wrote(last)
	if _, err := io.WriteString(here, "unread"); err != nil {
		t.Fatal(err)
	}
	if err := client.SetLinger(0); err != nil { // Close sends a reset
		t.Fatal(err)
	}
	_ = client.Close()
	if _, err := here.Read(make([]byte, 1)); err == nil {
		t.Error("the client has not left")
	}
	if from := <-last; from != r.RemoteAddr || !c.Gone() || len(before) != 0 {
		t.Errorf("the client at %s has left, it was said to be the one at %s; gone %v", r.RemoteAddr, from, c.Gone())
	}
	c.Wrote(before) // too late: the source gets the address at once
	if from := <-before; from != r.RemoteAddr {
		t.Errorf("it was said to be the client at %s", from)
	}
	_ = here.Close()
	if cs.At(r) != nil {
		t.Error("a closed connection is watched")
	}
}

// An answer with which net/http itself refuses a version of HTTP or a transfer coding becomes a 400. A handler's answers stay.
func TestOtherHTTP(t *testing.T) {
	t.Parallel()
	var cs Connections
	for said, want := range map[string]string{
		"HTTP/1.1 501 Not Implemented\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nUnsupported transfer encoding": "HTTP/1.1 400",
		"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n":                   "HTTP/1.1 400",
		"HTTP/1.1 501 Not Implemented\r\nDate: now\r\n\r\na handler's":                                                                      "HTTP/1.1 501",
		"HTTP/1.1 500 Internal Server Error\r\n\r\n":                                                                                        "HTTP/1.1 500",
	} {
		here, client := pair(t, &cs)
		if n, err := io.WriteString(here, said); n != len(said) || err != nil {
			t.Errorf("%d bytes written, %v", n, err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(client, got); err != nil || string(got) != want {
			t.Errorf("%.30q became %q, want %q: %v", said, got, want, err)
		}
	}
}

// TestHasRead has a client that leaves after it has read all, and one with a byte unread. A goroutine has read the network's error,
// but not noted it yet.
func TestHasRead(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("what a client's system has acknowledged is not known here")
	}
	for _, all := range []bool{true, false} {
		here, client := pair(t, new(Connections))
		c := here.(*Conn)
		if _, err := io.WriteString(here, "text"); err != nil {
			t.Fatal(err)
		}
		reads := make([]byte, 4)
		if !all {
			reads = reads[:3]
		}
		if _, err := io.ReadFull(client, reads); err != nil {
			t.Fatal(err)
		}
		_ = client.Close()
		if _, err := c.TCPConn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) != all {
			t.Errorf("the network says %v of a client that has read all: %v", err, all)
		}
		if !c.Gone() || c.HasRead() != all {
			t.Errorf("a client that has read all (%v): gone %v, has read all %v", all, c.Gone(), c.HasRead())
		}
	}
}

// The source gets a reset when the connection is read or closed, also if another goroutine has read its error and not noted it yet. If this
// side has ended the connection first, the client's end does not count.
func TestResetFoundElsewhere(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the state of a connection is not known here")
	}
	for _, end := range []string{"reads", "closes", "ended first"} {
		here, client := pair(t, new(Connections))
		c, last := here.(*Conn), make(heard, 1)
		c.Wrote(last)
		switch end {
		case "ended first":
			_ = c.CloseWrite()
			_ = client.Close()
			_, _ = here.Read(make([]byte, 1))
			_ = here.Close()
		default:
			_ = client.SetLinger(0)
			_ = client.Close()
			if _, err := c.TCPConn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
				t.Fatalf("the network says %v of a reset", err)
			}
			if end == "reads" {
				_, _ = here.Read(make([]byte, 1))
			} else {
				_ = here.Close()
			}
		}
		if told := len(last) > 0; told != (end != "ended first") {
			t.Errorf("a client whose connection %s: the source was told: %v", end, told)
		}
	}
}
