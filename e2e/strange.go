package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Strange has the bytes of one connection, as no client would send them.
type Strange struct {
	Name  string
	Bytes string
	// Frames are WebSocket frames, sent once the answer to Bytes has begun.
	Frames string
	// Stays says that the client does not end its side of the connection with a FIN, like one that
	// waits for an answer.
	Stays bool
}

// Send sends the bytes, and returns the answer: all bytes until the server ends the connection, or
// is silent for answerPause after it has begun to answer; with Stays, those of the first read.
func (s *Strange) Send(addr string) (received []byte, err error) {
	c, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	sent := make(chan struct{})
	go func() { // a server may answer before it has read all, and then reads no more
		defer close(sent)
		if _, err := io.WriteString(c, s.Bytes); err == nil && s.Frames == "" && !s.Stays {
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	buf := make([]byte, 16<<10)
	frames := s.Frames
	for {
		n, err := c.Read(buf)
		received = append(received, buf[:n]...)
		if n > 0 {
			_ = c.SetReadDeadline(time.Now().Add(answerPause))
			if frames != "" {
				<-sent
				_, _ = io.WriteString(c, frames)
				frames = ""
			}
		}
		if err != nil || s.Stays {
			break
		}
	}
	_ = c.Close()
	<-sent
	return received, nil
}

// answerPause is how long a server that has begun to answer may be silent.
const answerPause = 300 * time.Millisecond

// answered matches the headers of the answers that a server has sent.
var answered = regexp.MustCompile(`(?s)HTTP/1\.[01] (\d\d\d)[^\r\n]*\r\n(.*?)\r\n\r\n`)

// Answers returns the statuses of the answers in received. The error is not nil if one is 500 or
// more, other than a 503 with Retry-After.
func Answers(received []byte) (statuses []int, err error) {
	for _, m := range answered.FindAllSubmatch(received, -1) {
		status, _ := strconv.Atoi(string(m[1]))
		statuses = append(statuses, status)
		later := status == http.StatusServiceUnavailable && bytes.Contains(bytes.ToLower(m[2]), []byte("retry-after:"))
		if status >= 500 && !later {
			err = fmt.Errorf("%.300q", m[0])
		}
	}
	return statuses, err
}

// A Place has the names on a server that strange requests use.
type Place struct {
	Host    string // of the server, and its port
	Session string // the id of a session that may be broken
	Other   string // an event id of another session
	Pair    string // the id of a session of the 2024-11-05 endpoints
}

// usual are the headers of a correct POST, except its length.
const usual = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"

const (
	strangePing = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	strangeInit = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"s","version":"1"}}}`
	handshaking = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)

// StrangeRequests are requests that no client would make, on all paths of a server.
func StrangeRequests(p Place) []Strange {
	s := &strangers{Place: p}
	s.framing()
	s.lines()
	s.headers()
	s.bodies()
	s.cursors()
	s.paths()
	s.frames()
	return s.all
}

type strangers struct {
	Place
	all []Strange
}

// add adds bytes as they are.
func (s *strangers) add(name, raw string) { s.all = append(s.all, Strange{Name: name, Bytes: raw}) }

// head returns the beginning of a request, with Host.
func (s *strangers) head(line string) string { return line + " HTTP/1.1\r\nHost: " + s.Host + "\r\n" }

// post adds a POST of a body in the session, with more headers.
func (s *strangers) post(name, headers, body string) {
	s.add(name, fmt.Sprintf("%s%sMcp-Session-Id: %s\r\n%sContent-Length: %d\r\n\r\n%s", s.head("POST /mcp"), usual, s.Session, headers, len(body), body))
}

// framing adds requests with a wrong end of the body.
func (s *strangers) framing() {
	start := s.head("POST /mcp") + usual + "Mcp-Session-Id: " + s.Session + "\r\n"
	for name, rest := range map[string]string{
		"bad chunk size":            "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
		"huge chunk size":           "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
		"too long chunk size":       "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("0", 5000) + "2\r\n{}\r\n0\r\n\r\n",
		"negative chunk size":       "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
		"chunk without end":         "Transfer-Encoding: chunked\r\n\r\n2\r\n{}",
		"chunk longer than said":    "Transfer-Encoding: chunked\r\n\r\n2\r\n{}}}\r\n0\r\n\r\n",
		"chunk extensions":          "Transfer-Encoding: chunked\r\n\r\n2;" + strings.Repeat("a=b;", 5000) + "\r\n{}\r\n0\r\n\r\n",
		"one byte a chunk":          "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\n \r\n", 4000) + "0\r\n\r\n",
		"trailers":                  "Transfer-Encoding: chunked\r\nTrailer: Mcp-Session-Id\r\n\r\n2\r\n{}\r\n0\r\nMcp-Session-Id: x\r\n\r\n",
		"trailer without end":       "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + strings.Repeat("X: y\r\n", 9000),
		"both lengths":              "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"two lengths":               "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
		"list of lengths":           "Content-Length: 2, 2\r\n\r\n{}",
		"negative length":           "Content-Length: -1\r\n\r\n{}",
		"huge length":               "Content-Length: 9223372036854775807\r\n\r\n{}",
		"length over the integers":  "Content-Length: 99999999999999999999\r\n\r\n{}",
		"length with a sign":        "Content-Length: +2\r\n\r\n{}",
		"length in hex":             "Content-Length: 0x2\r\n\r\n{}",
		"empty length":              "Content-Length: \r\n\r\n{}",
		"length beyond the body":    "Content-Length: 4000\r\n\r\n{}",
		"length short of the body":  "Content-Length: 1\r\n\r\n" + strangePing,
		"no length":                 "\r\n" + strangePing,
		"gzip as a transfer coding": "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"a transfer coding made up": "Transfer-Encoding: nonsense\r\n\r\n{}",
		"two transfer codings":      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"identity":                  "Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\n{}",
		"gzip":                      "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
		"gzip that is none":         fmt.Sprintf("Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", len(strangePing), strangePing),
		"100-continue, no body":     "Expect: 100-continue\r\nContent-Length: 40\r\n\r\n",
		"100-continue, too large":   "Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n",
		"another expectation":       "Expect: wonders\r\nContent-Length: 2\r\n\r\n{}",
		"nothing in it":             "Content-Length: 0\r\n\r\n",
		"garbage after it":          fmt.Sprintf("Content-Length: %d\r\n\r\n%s\x00\xff garbage\r\n\r\n", len(strangePing), strangePing),
	} {
		s.add(name, start+rest)
	}
	ping := fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", start, len(strangePing), strangePing)
	s.add("pipeline", strings.Repeat(ping, 20))
	s.add("pipeline of all methods", ping+s.head("GET /mcp")+"\r\n"+s.head("DELETE /nothing")+"\r\n"+s.head("OPTIONS *")+"\r\n"+ping)
	s.all = append(s.all, Strange{Name: "half a request, and silence", Bytes: start + "Content-Length: 40\r\n\r\n{", Stays: true})
}

// lines adds wrong request lines and protocols.
func (s *strangers) lines() {
	for _, line := range []string{
		"GET /mcp", "GET /mcp HTTP/0.9", "GET /mcp HTTP/2.0", "GET /mcp HTTP/3.0", "GET /mcp HTTP/1.999", "GET /mcp HTTP/one", "GET  /mcp HTTP/1.1",
		"GET /mcp\tHTTP/1.1", "/mcp", "GET", "", " GET /mcp HTTP/1.1", "GET /mc\x00p HTTP/1.1", "GET /mc\xffp HTTP/1.1", "G\x01T /mcp HTTP/1.1",
		"GET http://" + s.Host + "/mcp HTTP/1.1", "GET http://elsewhere.example/mcp HTTP/1.1", "GET ftp:// HTTP/1.1", "GET //elsewhere/mcp HTTP/1.1",
		"OPTIONS * HTTP/1.1", "GET * HTTP/1.1", "POST * HTTP/1.1", "CONNECT elsewhere.example:443 HTTP/1.1", "CONNECT /mcp HTTP/1.1", "CONNECT  HTTP/1.1",
		"TRACE /mcp HTTP/1.1", "HEAD /mcp HTTP/1.1", "PUT /mcp HTTP/1.1", "PATCH /sse HTTP/1.1", "post /mcp HTTP/1.1", "DELETE /sse HTTP/1.1", "PRI * HTTP/2.0",
		strings.Repeat("A", 9000) + " /mcp HTTP/1.1", "GET /" + strings.Repeat("a", 60000) + " HTTP/1.1", "GET /mcp?" + strings.Repeat("a=b&", 5000) + " HTTP/1.1",
	} {
		s.add(fmt.Sprintf("line %.40q", line), line+"\r\nHost: "+s.Host+"\r\n\r\n")
		s.add(fmt.Sprintf("line %.40q with LF only", line), line+"\nHost: "+s.Host+"\n\n")
	}
	s.add("HTTP/1.0", "GET /mcp HTTP/1.0\r\n\r\n")
	s.add("HTTP/1.0 that stays", "POST /mcp HTTP/1.0\r\nConnection: keep-alive\r\n"+usual+"Content-Length: 2\r\n\r\n{}")
	s.add("HTTP/0.9", "GET /mcp\r\n")
	s.add("preface of HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	s.add("h2c", s.head("GET /mcp")+"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")
	s.add("TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
	s.add("no Host", "GET /mcp HTTP/1.1\r\n\r\n")
	s.add("two Hosts", "GET /mcp HTTP/1.1\r\nHost: "+s.Host+"\r\nHost: elsewhere\r\n\r\n")
	for _, host := range []string{"", " ", "a b", "[::1", "user@host", "h:99999999", "\xff", "elsewhere.example", strings.Repeat("h", 5000)} {
		s.add(fmt.Sprintf("Host %.20q", host), "GET /mcp HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	}
	for _, to := range []string{"nonsense", "websocket/12", "websocket, h2c", "", "TLS/1.0"} {
		s.add(fmt.Sprintf("upgrade to %q", to), s.head("GET /mcp")+"Connection: Upgrade\r\nUpgrade: "+to+"\r\n\r\n")
	}
}

// headers adds requests with headers that are too many, too large, repeated or wrong.
func (s *strangers) headers() {
	s.post("a huge header", "X: "+strings.Repeat("x", 1<<20)+"\r\n", strangePing)
	s.post("thousands of headers", strings.Repeat("X: y\r\n", 10000), strangePing)
	s.post("thousands of names", func() string {
		var b strings.Builder
		for i := range 3000 {
			fmt.Fprintf(&b, "X-%d: y\r\n", i)
		}
		return b.String()
	}(), strangePing)
	for _, line := range []string{
		": no name", "no colon", "X : space before", " folded: x", "X: a\x00b", "X: a\rb", "X: \xff\xfe", "\xff: x", "X-Ümlaut: é", "X: \x1b[31m", "Connection: Mcp-Session-Id",
		"Connection: close, keep-alive, upgrade", "Keep-Alive: timeout=-1", "Content-Length: nonsense", "Accept: " + strings.Repeat("text/html,", 3000),
		"Accept: \xff", "Accept: ;;;,,,", "Content-Type: \x7f", "Content-Type: application/json; charset=\"", "Range: bytes=0-", "If-None-Match: *",
		"Authorization: Basic \xff", "Cookie: " + strings.Repeat("a", 4000), "Sec-Fetch-Site: nonsense", "Holdfast-Visit: e30", "Holdfast-Moved: x", "X-Forwarded-For: \x00",
		"Te: trailers, nonsense", "Idempotency-Key: no quotes", "Idempotency-Key: \"\x01\"", "Idempotency-Key: \"" + strings.Repeat("k", 5000) + "\"",
	} {
		s.post(fmt.Sprintf("header %.40q", line), line+"\r\n", strangePing)
	}
	for _, name := range []string{"Mcp-Session-Id", "MCP-Protocol-Version", "Last-Event-ID", "Origin", "Idempotency-Key", "Content-Type", "Accept"} {
		for _, value := range []string{"", " ", "x", "\xff", "null", "\"", strings.Repeat("v", 3000), "2025-11-25", "2024-11-05", "9999-99-99", "http://" + s.Host, "%00"} {
			s.post(fmt.Sprintf("%s %.20q besides", name, value), name+": "+value+"\r\n", strangePing)
			for _, path := range []string{"/mcp", "/sse"} {
				s.add(fmt.Sprintf("GET %s %s %.20q twice", path, name, value), s.head("GET "+path)+strings.Repeat(name+": "+value+"\r\n", 2)+"Accept: text/event-stream\r\n\r\n")
			}
		}
	}
}

// bodies adds requests with bodies that are not messages, or odd ones.
func (s *strangers) bodies() {
	deep := strings.Repeat("[", 20000)
	bodies := []string{
		"", " ", "null", "true", "1", `"x"`, "[]", "[[]]", "[{}]", "{}", "{", "}", "\x00", "\xff\xfe", "\xef\xbb\xbf" + strangePing, strangePing + strangePing, strangePing + ",", "//" + strangePing,
		deep, deep + strings.Repeat("]", 20000), strings.Repeat(`{"a":`, 20000), `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + deep + strings.Repeat("]", 20000) + "}",
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping","method":"tools/list"}`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, `{"id":1,"method":"ping"}`,
		`{"jsonrpc":2.0,"id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":1}`, `{"jsonrpc":"2.0","id":1,"method":null}`, `{"jsonrpc":"2.0","id":1,"method":""}`,
		`{"jsonrpc":"2.0","id":1,"method":"p\u0069ng"}`, `{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, `{"jsonrpc":"2.0","id":1,"method":"ping","params":1}`,
		`{"jsonrpc":"2.0","id":1,"result":{},"error":{}}`, `{"jsonrpc":"2.0","id":1,"result":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1}`, `{"jsonrpc":"2.0","result":{}}`,
		`{"jsonrpc":"2.0","id":"q1","error":{"code":"x"}}`, `{"jsonrpc":"2.0","method":"ping"}`, `{"jsonrpc":"2.0","method":"initialize"}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize"}`, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":5}}`, "[" + strangeInit + "," + strangePing + "]",
		"[" + strings.TrimSuffix(strings.Repeat(strangePing+",", 5000), ",") + "]", `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("m", 100000) + `"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":null}`, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"count","arguments":"x","_meta":5}}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"requestToken":"x"}}`, `{"jsonrpc":"2.0","id":1,"method":"requests/getStatus","params":{}}`,
		`{"jsonrpc":"2.0","id":1,"method":"requests/getStatus/all","params":{"cursor":"\ud800"}}`, `{"jsonrpc":"2.0","id":1,"method":"vendor/\u0000"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[1]}}`, "--x\r\nContent-Disposition: form-data\r\n\r\n", "a=b&c=d",
	}
	for _, id := range []string{
		`null`, `true`, `{}`, `[]`, `[1]`, `{"a":{"b":[]}}`, `1.5`, `1e3`, `1e999`, `-0`, `-1`, `0`, `9007199254740993`, `99999999999999999999999999999`, `1.0000000000000000001`,
		`""`, `"\u0000"`, `"\ud800"`, `"\udc00\ud800"`, "\"\xff\"", `"` + strings.Repeat("i", 3000) + `"`, `01`, `0x1`, `NaN`, `Infinity`, `'x'`, `"hf-1"`, `"holdfast-x"`,
	} {
		bodies = append(bodies, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`,
			`{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"_meta":{"progressToken":`+id+`}}}`)
	}
	for i, body := range bodies {
		name := fmt.Sprintf("body %d %.60q", i, body)
		s.post(name, "", body)
		s.post(name+" again", "MCP-Protocol-Version: 2025-03-26\r\n", body)
		s.add(name+" without a session", fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", s.head("POST /mcp"), usual, len(body), body))
		if i%3 == 0 {
			s.add(name+" to a pair", fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", s.head("POST /messages?sessionId="+s.Pair), usual, len(body), body))
		}
	}
}

// cursors adds requests with event ids and session ids that the server did not give, or gave to
// others.
func (s *strangers) cursors() {
	for _, last := range []string{
		"", "x", "0", "-1", "1", "1.1.1", "0.0.0", "99999999999999999999", "a.b.c", "....", strings.Repeat("9", 3000), strings.Repeat(".", 3000), "\xff", "\x00", "null", "%00",
		s.Other, s.Other + "0", s.Other + ".1", strings.ToUpper(s.Other), s.Session, "18446744073709551615.18446744073709551615.18446744073709551615", "1.-1.1", "~", "1.1.1~",
		"zzzzzzzzzzzzz.zzzzzzzzzzzzz.zzzzzzzzzzzzz", " 1.1.1 ", "1,1,1",
	} {
		for _, path := range []string{"/mcp", "/sse", "/mcp?stream=" + s.Other, "/messages"} {
			s.add(fmt.Sprintf("GET %.20s from %.30q", path, last),
				s.head("GET "+path)+"Accept: text/event-stream\r\nMcp-Session-Id: "+s.Session+"\r\nLast-Event-ID: "+last+"\r\n\r\n")
		}
	}
	for _, id := range []string{"", "x", "\xff", strings.Repeat("s", 3000), s.Session + "x", s.Pair, "../..", "%2e", "0", "-"} {
		for _, method := range []string{"GET", "DELETE", "POST"} {
			s.add(fmt.Sprintf("%s of session %.20q", method, id), s.head(method+" /mcp")+usual+"Mcp-Session-Id: "+id+"\r\nContent-Length: 0\r\n\r\n")
		}
	}
}

// paths adds requests for paths that resemble the server's.
func (s *strangers) paths() {
	for _, path := range []string{
		"//mcp", "/mcp/", "/./mcp", "/x/../mcp", "/mcp%2f", "/%6dcp", "/mcp%00", "/mcp%", "/mcp%zz", "/mcp;x=y", "/MCP", "/", "/../../etc/passwd", "/sse/", "//sse", "/messages/",
		"/mcp?", "/mcp?stream", "/mcp?stream=", "/mcp?stream=x", "/mcp?stream=x.y", "/mcp?stream=" + s.Session + ".1", "/mcp?stream=" + s.Session + ".", "/mcp?stream=.",
		"/mcp?stream=%ff", "/mcp?stream=%zz", "/mcp?stream=" + strings.Repeat("x", 4000), "/mcp?stream=a&stream=b", "/mcp?stream=a;b", "/mcp?sessionId=" + s.Pair,
		"/messages", "/messages?sessionId=", "/messages?sessionId=x", "/messages?sessionId=%ff", "/messages?sessionId=" + s.Session, "/messages?sessionId=" + s.Pair + "&sessionId=x",
		"/messages?sessionId=" + strings.Repeat("x", 4000), "/sse?sessionId=" + s.Pair, "/mcp#x", "/healthz", "/.well-known/oauth-protected-resource",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "OPTIONS"} {
			s.add(fmt.Sprintf("%s %.40s", method, path), fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", s.head(method+" "+path), usual, len(strangePing), strangePing))
		}
	}
}

// frames adds wrong WebSocket handshakes, and wrong or odd frames.
func (s *strangers) frames() {
	open := s.head("GET /mcp") + handshaking + "Mcp-Session-Id: " + s.Session + "\r\n"
	for _, line := range []string{
		"Sec-WebSocket-Version: 12", "Sec-WebSocket-Key: x", "Sec-WebSocket-Extensions: permessage-deflate; nonsense", "Sec-WebSocket-Protocol: ,,,", "Sec-WebSocket-Protocol: \xff",
		"Last-Event-ID: x", "Last-Event-ID: " + s.Other, "Origin: http://elsewhere.example", "Content-Length: 5",
	} {
		s.add(fmt.Sprintf("handshake with %q", line), open+line+"\r\n\r\n")
	}
	s.add("handshake of a POST", s.head("POST /mcp")+handshaking+"\r\n")
	s.add("handshake at /sse", s.head("GET /sse")+handshaking+"\r\n")
	s.add("handshake with frames in it", open+"\r\n"+frame(0x81, strangePing)+frame(0x81, strangePing))
	long := strings.Repeat("x", 1<<20)
	for name, frames := range map[string]string{
		"opcode made up":         frame(0x83, "x"),
		"control opcode made up": frame(0x8b, "x"),
		"reserved bits":          frame(0xf1, strangePing),
		"not masked":             "\x81\x02{}",
		"huge length":            "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"negative length":        "\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",
		"length not shortest":    "\x81\xfe\x00\x02\x00\x00\x00\x00{}",
		"half a header":          "\x81",
		"half a message":         frame(0x81, strangePing)[:10],
		"fragmented ping":        frame(0x09, "x") + frame(0x80, "y"),
		"long ping":              frame(0x89, strings.Repeat("p", 200)),
		"continuation of none":   frame(0x80, "x"),
		"two beginnings":         frame(0x01, "{") + frame(0x81, "}"),
		"fragments":              frame(0x01, strangePing[:5]) + frame(0x89, "p") + frame(0x80, strangePing[5:]),
		"endless fragments":      frame(0x01, "x") + strings.Repeat(frame(0x00, "x"), 3000),
		"binary":                 frame(0x82, strangePing),
		"no UTF-8":               frame(0x81, "\xff\xfe"),
		"no JSON":                frame(0x81, "{"),
		"nothing":                frame(0x81, ""),
		"initialize again":       frame(0x81, strangeInit),
		"a batch":                frame(0x81, "["+strangePing+","+strangePing+"]"),
		"too large":              frame(0x01, long) + strings.Repeat(frame(0x00, long), 5),
		"close without reason":   frame(0x88, ""),
		"close with one byte":    frame(0x88, "\x03"),
		"close with a bad code":  frame(0x88, "\x00\x00"),
		"close 1005":             frame(0x88, "\x03\xed"),
		"close, bad UTF-8":       frame(0x88, "\x03\xe8\xff"),
		"frames after close":     frame(0x88, "\x03\xe8") + frame(0x81, strangePing),
		"HTTP":                   s.head("GET /mcp") + "\r\n",
		"pongs":                  strings.Repeat(frame(0x8a, "p"), 2000),
		"pings":                  strings.Repeat(frame(0x89, "p"), 2000),
	} {
		s.all = append(s.all, Strange{Name: "frames: " + name, Bytes: open + "\r\n", Frames: frames})
	}
}

// frame returns a WebSocket frame with a first byte, masked with zeros.
func frame(first byte, payload string) string {
	n := len(payload)
	head := []byte{first}
	switch {
	case n < 126:
		head = append(head, 0x80|byte(n))
	case n < 1<<16:
		head = append(head, 0x80|126, byte(n>>8), byte(n))
	default:
		head = append(head, 0x80|127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return string(head) + "\x00\x00\x00\x00" + payload
}
