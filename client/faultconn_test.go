package client_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A faultConn is one connection.
type faultConn struct {
	w      *faultProxy
	number uint64
	client *net.TCPConn
	up     *net.TCPConn

	mu    sync.Mutex
	tr    fault
	left  int // bytes of the response until the fault; negative: no limit
	post  *post
	timer *time.Timer
	cut   bool
	given int    // bytes of the response that were passed on
	tail  []byte // the last of those bytes
}

// carry carries a connection until either side ends it, or it is cut.
func (g *faultConn) carry() {
	br := bufio.NewReaderSize(g.client, 64<<10)
	var responses sync.WaitGroup
	defer responses.Wait()
	unread := false // the client has left without reading all bytes
	defer func() { g.over(unread) }()
	for n := 0; ; n++ {
		q, err := readRequest(br)
		if err != nil {
			unread = errors.Is(err, syscall.ECONNRESET)
			return
		}
		switch {
		case q.line == "GET /mcp":
			q.call = standalone
		case q.call == noCall:
			q.call = g.w.resumes(q.line)
		}
		tr := g.w.plan(g.number, n, q)
		g.w.trace.addf("proxy %d.%d: %s %.300s %v", g.number, n, q.line, bytes.TrimPrefix(q.body, []byte(`{"jsonrpc":"2.0",`)), tr)
		if !g.w.sleep(tr.delay) {
			return
		}
		if tr.status != 0 && !tr.passed {
			g.w.note(q.call, &post{struck: tr.status != 503, refused: tr.status == 503}) // a 503 says that the request did not run
			_, _ = g.client.Write(canned(tr.status, "keep-alive"))
			continue
		}
		if g.up == nil {
			if g.up = g.w.Dial(); g.up == nil {
				return
			}
			responses.Go(g.responses)
		}
		if tr.twice {
			g.w.Go(func() { g.w.shadow(q.raw, tr.delay) })
		}
		if !g.request(q, tr) {
			break
		}
		if q.upgrade {
			g.frames(br, tr)
			return
		}
	}
	_, _ = io.Copy(io.Discard, br) // the client may not have noticed
}

func canned(status int, connection string) []byte {
	retry := ""
	if status == 503 {
		retry = "Retry-After: 0\r\n"
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d Trouble\r\n%sConnection: %s\r\nContent-Length: 0\r\n\r\n", status, retry, connection)
}

// request passes a request on. It returns false if the connection was cut within the request.
func (g *faultConn) request(q *request, tr fault) bool {
	p := &post{}
	g.w.note(q.call, p)
	data := q.raw
	g.mu.Lock()
	if g.cut {
		g.mu.Unlock()
		p.struck = true
		return false
	}
	g.tr, g.left, g.post, g.given, g.tail = tr, -1, p, 0, nil
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	switch {
	case tr.inside && !q.upgrade:
		data = data[:min(tr.at, len(data))]
	case tr.at >= 0 && !tr.inside:
		g.left = tr.at
	}
	if tr.after > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(tr.after, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.timer == timer {
				g.strike()
			}
		})
		g.timer = timer
	}
	g.mu.Unlock()
	_, _ = g.up.Write(data) // when the write fails, the response fails, too
	if len(data) == len(q.raw) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.strike()
	return false
}

// frames carries the bytes after a request that upgraded the connection.
func (g *faultConn) frames(br *bufio.Reader, tr fault) {
	left := -1
	if tr.inside {
		left = tr.at
	}
	buf := make([]byte, 4<<10)
	for {
		n, err := br.Read(buf)
		data := buf[:n]
		if left >= 0 && left <= len(data) {
			_, _ = g.up.Write(data[:left])
			g.mu.Lock()
			g.strike()
			g.mu.Unlock()
			_, _ = io.Copy(io.Discard, br)
			return
		}
		if left >= 0 {
			left -= len(data)
		}
		g.mu.Lock()
		cut := g.cut
		g.mu.Unlock()
		if !cut {
			_, _ = g.up.Write(data)
		}
		if err != nil {
			return
		}
	}
}

// over ends the connection after its client has left. unread says that the client
// had not read all bytes before.
func (g *faultConn) over(unread bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	if g.post != nil && !g.cut && (unread || !g.whole()) {
		// The client has waited for too long, on a machine that is slow or stood still: later bytes are lost.
		g.w.trace.addf("proxy %d: its client has left", g.number)
		g.w.mu.Lock()
		g.post.struck, g.post.reset = true, true
		g.w.mu.Unlock()
	}
	if g.up != nil && (!g.cut || !g.tr.haunted) {
		g.w.Drop(g.up)
	}
}

// whole says whether all of the response was passed on. g.mu is held.
func (g *faultConn) whole() bool {
	if bytes.HasSuffix(g.tail, []byte("\r\n0\r\n\r\n")) {
		return true
	}
	head, _, ok := bytes.Cut(g.post.passed, []byte("\r\n\r\n"))
	length := 0
	if m := contentLength.FindSubmatch(head); m != nil {
		length, _ = strconv.Atoi(string(m[1]))
	}
	return ok && !bytes.Contains(head, []byte("chunked")) && g.given >= len(head)+4+length
}

var contentLength = regexp.MustCompile(`(?i)\r\ncontent-length: (\d+)`)

// responses carries the bytes from the server.
func (g *faultConn) responses() {
	buf := make([]byte, 16<<10)
	for {
		n, err := g.up.Read(buf)
		if n > 0 {
			g.pass(buf[:n])
		}
		if err == nil {
			continue
		}
		g.mu.Lock()
		if !g.cut {
			_ = g.client.Close()
		}
		g.mu.Unlock()
		g.w.Drop(g.up)
		return
	}
}

// pass hands data to the client, up to the place of the fault.
func (g *faultConn) pass(data []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cut {
		return // the server may not have noticed the cut
	}
	if g.left >= 0 && g.left <= len(data) {
		g.give(data[:g.left])
		data = data[g.left:]
		g.left = -1
		if g.tr.stall == 0 {
			g.strike()
			return
		}
		stall := g.tr.stall
		g.mu.Unlock()
		g.w.sleep(stall)
		g.mu.Lock()
		if g.cut {
			return
		}
	} else if g.left >= 0 {
		g.left -= len(data)
	}
	g.give(data)
}

// give hands data to the client. g.mu is held.
func (g *faultConn) give(data []byte) {
	if len(g.post.passed) == 0 {
		status, _, _ := bytes.Cut(data, []byte("\r"))
		g.w.trace.addf("proxy %d: %s", g.number, status)
	}
	if room := 8<<10 - len(g.post.passed); room > 0 {
		g.w.mu.Lock()
		g.post.passed = append(g.post.passed, data[:min(room, len(data))]...)
		g.w.mu.Unlock()
	}
	g.given += len(data)
	g.tail = append(g.tail, data[max(0, len(data)-8):]...)
	g.tail = g.tail[max(0, len(g.tail)-8):]
	_ = g.client.SetWriteDeadline(time.Now().Add(10 * time.Second))
	if _, err := g.client.Write(data); errors.Is(err, os.ErrDeadlineExceeded) {
		panic("a client does not read")
	}
}

// strike cuts the connection. g.mu is held.
func (g *faultConn) strike() {
	if g.cut {
		return
	}
	g.cut = true
	g.w.trace.addf("proxy %d: struck", g.number)
	g.w.mu.Lock()
	g.post.struck, g.post.reset = true, g.tr.reset
	g.w.mu.Unlock()
	if g.tr.status != 0 {
		_, _ = g.client.Write(canned(g.tr.status, "close"))
	}
	switch {
	case g.tr.deaf:
	case g.tr.reset:
		_ = g.client.SetLinger(0)
		_ = g.client.Close()
	default:
		// Bytes that the client still sends must not turn the FIN into an RST.
		_ = g.client.CloseWrite()
		_ = g.client.SetReadDeadline(time.Now().Add(time.Second))
	}
	if !g.tr.haunted {
		if g.tr.reset {
			_ = g.up.SetLinger(0)
		}
		_ = g.up.Close()
	}
}
