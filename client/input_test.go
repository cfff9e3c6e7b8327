package client_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

const (
	succeeds = "" // the call succeeds
	unknown  = "outcome unknown: "
	useless  = unknown + "the server sends what cannot be used: "
)

// An error under the request's own id is the server's answer, whatever the status: its code and message arrive
// unchanged, and the session goes on.
func TestOwnErrors(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 404, 405, 406, 410, 413, 422, 500, 501, 502, 503} {
		for _, id := range []string{`1`, `1.0`, `"1"`} {
			t.Run(fmt.Sprint(status, " ", id), func(t *testing.T) {
				t.Parallel()
				s := &bad{answer: says(status, typeJSON, `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-32602,"message":"no such session or file","data":[1]}}`)}
				e := s.call(t, client.Options{})
				if e == nil || e.Code != -32602 || e.Message != "no such session or file" || string(e.Data) != "[1]" {
					t.Errorf("the call ended with %+v", e)
				}
				if n := s.posts.Load(); n != 1 {
					t.Errorf("the request was sent %d times", n)
				}
			})
		}
	}
}

// Whatever a server answers to one call, the call ends with a clear error, or continues, and
// other calls are not disturbed. A request that may have run is sent once.
func TestInputAnswers(t *testing.T) {
	t.Parallel()
	stream := func(text string) func(http.ResponseWriter, *http.Request, *bad) { return says(200, typeEvents, text) }
	whole := func(text string) func(http.ResponseWriter, *http.Request, *bad) { return says(200, typeJSON, text) }
	head := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, *bad)
		want   string // the beginning of the error, or succeeds
		tells  string // a part of the error
	}{
		{"a web page", says(200, "text/html; charset=utf-8", "<!doctype html><p>Hello"), useless, `"text/html", not JSON`},
		{"a web page that says it is JSON", whole("<!doctype html>"), useless, "malformed JSON"},
		{"nothing", says(200, "", ""), useless, "not JSON or an event stream"},
		{"no JSON", whole(""), useless, "malformed JSON"},
		{"half of it", whole(good[:20]), useless, "malformed JSON"},
		{"two messages in a row", whole(good + good), useless, "text after the message"},
		{"no UTF-8", whole(`{"jsonrpc":"2.0","id":1,"result":{"x":"` + "\xff\xfe" + `"}}`), succeeds, ""},
		{"no UTF-8 in a name", whole(`{"jsonrpc":"2.0","id":1,"result":{"` + "\xc0\x80" + `":1}}`), succeeds, ""},
		{"no UTF-8 in an event", stream("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"\xff\"}\n\n"), succeeds, ""},
		{"nested deeply", whole(`{"jsonrpc":"2.0","id":1,"result":` + strings.Repeat("[", 1e6)), useless, "nested deeper than"},
		{"the id as a string", whole(`{"jsonrpc":"2.0","id":"1","result":{}}`), succeeds, ""},
		{"the id as a fraction", whole(`{"jsonrpc":"2.0","id":1.0,"result":{}}`), succeeds, ""},
		{"the id as an object", whole(`{"jsonrpc":"2.0","id":{"x":1},"result":{}}`), useless, "neither a string nor an integer"},
		{"the id null", whole(`{"jsonrpc":"2.0","id":null,"result":{}}`), useless, "neither a string nor an integer"},
		{"no id", whole(`{"jsonrpc":"2.0","result":{}}`), useless, "without an id"},
		{"an error with the id null", whole(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too odd"}}`), "too odd", ""},
		{"an error without an id", whole(`{"jsonrpc":"2.0","error":{"code":-32600,"message":"too odd"}}`), "too odd", ""},
		{"an event with an error without an id", stream("data: {\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"too odd\"}}\n\n"), "too odd", ""},
		{"another's answer", whole(`{"jsonrpc":"2.0","id":77,"result":{}}`), useless, "for another request"},
		{"another's answer in a stream", stream("data: {\"jsonrpc\":\"2.0\",\"id\":\"one\",\"result\":{}}\n\n"), unknown, "ended before the answer"},
		{"others' answers, and its own", stream("data: {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}\n\ndata: " + good + "\n\n"), succeeds, ""},
		{"two answers", stream("data: " + good + "\n\ndata: " + good + "\n\n"), succeeds, ""},
		{"two answers in an array", whole("[" + good + "," + good + "]"), succeeds, ""},
		{"an array", whole("[" + good + "]"), succeeds, ""},
		{"an array in an event", stream("data: [" + good + "]\n\n"), succeeds, ""},
		{"an array with none", whole("[]"), useless, "empty batch"},
		{"no version", whole(`{"id":1,"result":{}}`), useless, `"jsonrpc" is not "2.0"`},
		{"an error that is text", whole(`{"jsonrpc":"2.0","id":1,"error":"bad"}`), useless, `"error" is not an object`},
		{"garbage for events", stream(strings.Repeat("\x00\xff\x01garbage\n\r\r\n", 100)), unknown, "ended before the answer"},
		{"garbage in an event", stream("id: 1\ndata: garbage\n\n"), unknown, "HTTP 405"},
		{"heartbeats before the answer", stream("data: ping\n\ndata: [DONE]\n\ndata: {}\n\ndata: null\n\ndata: 1\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"x\"}\n\ndata: " + good + "\n\n"), succeeds, ""},
		{"another's answer that cannot be read", stream("data: {\"jsonrpc\":\"2.0\",\"id\":77,\"result\":NaN}\n\ndata: " + good + "\n\n"), succeeds, ""},
		{"its answer cannot be read", stream("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":NaN}\n\n"), useless, "NaN"},
		{"an answer without an id that cannot be read", stream("data: {\"jsonrpc\":\"2.0\",\"result\":NaN}\n\n"), useless, "NaN"},
		{"a byte order mark", whole("\xef\xbb\xbf" + good), succeeds, ""},
		{"an event with an id that no header can hold", stream("id: \x01\x7f\ndata: {}\n\n"), unknown, "ended before the answer"},
		{"taken, and no answer", says(202, "", ""), useless, "took the request and gave no answer"},
		{"no content", says(204, "", ""), useless, "took the request and gave no answer"},
		{"created", says(201, typeJSON, good), unknown, "HTTP 201"},
		{"odd spelling of JSON", says(200, "Application/JSON ; Charset=\"utf-8\";x=y", good), succeeds, ""},
		{"odd spelling of a stream", says(200, "TEXT/Event-Stream;charset=UTF-8", "data: "+good+"\n\n"), succeeds, ""},
		{"a type with half a parameter", says(200, "application/json; charset", good), succeeds, ""},
		{"packed", with("Content-Encoding", "gzip", whole(gzipped(good))), succeeds, ""},
		{"an event, packed", with("Content-Encoding", "GZIP", stream(gzipped("data: "+good+"\n\n"))), succeeds, ""},
		{"deflated", with("Content-Encoding", "deflate", whole(deflated(good, true))), succeeds, ""},
		{"deflated without a header", with("Content-Encoding", "deflate", whole(deflated(good, false))), succeeds, ""},
		{"an event, deflated", with("Content-Encoding", "deflate", stream(deflated("data: "+good+"\n\n", true))), succeeds, ""},
		{"deflated, and none of it", with("Content-Encoding", "deflate", whole("\xff\xffno deflate")), unknown, "ended before the answer"},
		{"packed, and none of it", with("Content-Encoding", "gzip", whole("no gzip")), unknown, "ended before the answer"},
		{"packed, and longer than may be", with("Content-Encoding", "gzip", whole(gzipped(`{"jsonrpc":"2.0","id":1,"result":"`+strings.Repeat("x", 17<<20)+`"}`))), useless, "too large"},
		{"packed in another way", with("Content-Encoding", "br", whole(good)), useless, `compressed ("br")`},
		{"packed for who says nothing", packs(whole(gzipped(good)), whole(good)), succeeds, ""},
		{"packed to nothing", with("Content-Encoding", "identity", whole(good)), succeeds, ""},
		{"less than was announced", wire(head + "Content-Length: 1000\r\n\r\n" + good), unknown, "connection ended"},
		{"more than was announced", wire(head + "Content-Length: 20\r\n\r\n" + good), useless, "malformed JSON"},
		{"cut in a chunk", wire(head + "Transfer-Encoding: chunked\r\n\r\n30\r\n" + good[:10]), unknown, "connection ended"},
		{"cut in a chunk of a stream", wire(strings.Replace(head, typeJSON, typeEvents, 1) + "Transfer-Encoding: chunked\r\n\r\n99\r\ndata: " + good[:10]), unknown, "connection ended"},
		{"bad chunks", wire(head + "Transfer-Encoding: chunked\r\n\r\nzzz\r\n"), unknown, "connection ended"},
		{"no HTTP", wire("220 mail.example ESMTP\r\n"), unknown, "malformed HTTP"},
		{"the end", wire(""), unknown, "connection"},
		{"a header too large", wire(head + "X: " + strings.Repeat("x", 11<<20) + "\r\n\r\n"), unknown, "header"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := &bad{answer: test.answer}
			e := s.call(t, client.Options{})
			judge(t, e, test.want, test.tells)
			if n := s.posts.Load(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
			if n := s.comes.Load(); n > 1 {
				t.Errorf("%d GETs", n)
			}
		})
	}
}

// The host gets the text of an error status. A request is sent again only after a status
// which says that it did not run, and may run later.
func TestInputStatus(t *testing.T) {
	t.Parallel()
	answer := says(200, typeJSON, good)
	said := func(status int) func(http.ResponseWriter, *http.Request, *bad) {
		return says(status, typeJSON, `{"jsonrpc":"2.0","id":null,"error":{"code":"odd","message":"because"}}`)
	}
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, *bad)
		want   string
		posts  int32
		wait   time.Duration // the least wait
	}{
		{"400", says(400, "", ""), "HTTP 400 Bad Request", 1, 0},
		{"400 with a reason", said(400), "because (HTTP 400)", 1, 0},
		{"400 with text", says(400, "text/plain", "because\nof\xff"), "because (HTTP 400)", 1, 0},
		{"400 with a page", says(400, "text/html", "<p>"), "HTTP 400 Bad Request", 1, 0},
		{"401", says(401, "", ""), "HTTP 401 Unauthorized", 1, 0},
		{"403", said(403), "because (HTTP 403)", 1, 0},
		{"404, always", says(404, "", ""), "the server ends each session at once", 4, 0},
		{"404, once", once(says(404, "", ""), answer), succeeds, 2, 0},
		{"405", says(405, "", ""), "HTTP 405 Method Not Allowed", 1, 0},
		{"406", says(406, "", ""), "HTTP 406 Not Acceptable", 1, 0},
		{"408, once", once(says(408, "", ""), answer), succeeds, 2, 0},
		{"409", says(409, "", ""), "HTTP 409 Conflict", 1, 0},
		{"410", says(410, "", ""), unknown + "HTTP 410 Gone", 1, 0},
		{"413", says(413, "", ""), "HTTP 413 Request Entity Too Large", 1, 0},
		{"422", said(422), "because (HTTP 422)", 1, 0},
		{"429, in seconds", with("Retry-After", "1", once(says(429, "", ""), answer)), succeeds, 2, time.Second},
		{"429, as a date", func(w http.ResponseWriter, r *http.Request, s *bad) {
			// A date has no fractions of a second: this is more than one second away.
			w.Header().Set("Retry-After", time.Now().Add(2*time.Second).UTC().Format(http.TimeFormat))
			once(says(429, "", ""), answer)(w, r, s)
		}, succeeds, 2, time.Second},
		{"429, until a time by a clock that is wrong", with("Date", "Mon, 02 Jan 2040 15:04:05 GMT",
			with("Retry-After", "Mon, 02 Jan 2040 15:04:06 GMT", once(says(429, "", ""), answer))), succeeds, 2, time.Second},
		{"429, for ever", with("Retry-After", "2000000000", says(429, "", "")), "the server asks to come back in ", 1, 0},
		{"429, nonsense", with("Retry-After", "-1 soon", once(says(429, "", ""), answer)), succeeds, 2, 0},
		{"500", says(500, "", ""), unknown + "HTTP 500 Internal Server Error", 1, 0},
		{"500 with a reason", said(500), unknown + "because (HTTP 500)", 1, 0},
		{"501", says(501, "", ""), unknown + "HTTP 501 Not Implemented", 1, 0},
		{"502", says(502, "text/html", "<p>"), unknown + "HTTP 502 Bad Gateway", 1, 0},
		{"503", with("Retry-After", "1", once(says(503, "", ""), answer)), succeeds, 2, time.Second},
		{"503, come back at once", with("Retry-After", "0", once(says(503, "", ""), answer)), succeeds, 2, 0},
		{"503 of a proxy whose server has died", says(503, "text/plain", "upstream connect error"), unknown + "upstream connect error (HTTP 503)", 1, 0},
		{"504", says(504, "", ""), unknown + "HTTP 504 Gateway Timeout", 1, 0},
		{"303", with("Location", "/x", says(303, "", "")), unknown + "HTTP 303 See Other", 1, 0},
		{"an unknown status", says(299, "", ""), unknown + "HTTP 299", 1, 0},
		{"redirected to nowhere", says(307, "", ""), "redirected to nowhere", 1, 0},
		{"redirected for ever", with("Location", "?again", says(307, "", "")), "redirected more than 10 times (HTTP 307)", 11, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &bad{answer: test.answer}
				url, hc := serveInside(t, s)
				began := time.Now()
				judge(t, s.callAt(t, url, client.Options{HTTPClient: hc}), test.want, "")
				if n := s.posts.Load(); n != test.posts {
					t.Errorf("the request was sent %d times, want %d", n, test.posts)
				}
				if took := time.Since(began); took < test.wait {
					t.Errorf("it was sent again after %v, want at least %v", took, test.wait)
				}
			})
		})
	}
}

// The client sends nothing to another origin, whatever the server says: its requests carry secrets.
func TestInputOtherOrigin(t *testing.T) {
	t.Parallel()
	there := elsewhere(t)
	host := strings.TrimPrefix(there, "http://")
	secrets := http.Header{"Authorization": {"Bearer secret"}, "X-Key": {"secret"}}
	for _, status := range []int{301, 302, 307, 308} {
		for _, to := range []string{there + "/mcp", "//" + host + "/mcp", "http://secret@" + host, "ftp://" + host, "http://127.0.0.1:99999"} {
			t.Run(fmt.Sprint(status, " ", to), func(t *testing.T) {
				t.Parallel()
				s := &bad{answer: with("Location", to, says(status, "", ""))}
				judge(t, s.call(t, client.Options{Header: secrets}), "redirected to another origin: ", fmt.Sprintf("(HTTP %d)", status))
				if n := s.posts.Load(); n != 1 {
					t.Errorf("the request was sent %d times", n)
				}
			})
		}
	}
	primed := func(link string) func(http.ResponseWriter, *http.Request, *bad) {
		return with("Link", link, says(200, typeEvents, "id: 1\nretry: 1\ndata:\n\n"))
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request, *bad){
		"a stream":                 primed("<" + there + `/s>; rel="stream"`),
		"a stream without scheme":  primed("<//" + host + `/s>; rel=stream`),
		"a stream under the name":  primed("<http://localhost/s>; rel=stream"),
		"a stream that is nothing": primed("<http://[/s>; rel=stream"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &bad{answer: answer, get: func(w http.ResponseWriter, r *http.Request, _ *bad) {
				if r.Header.Get("Last-Event-ID") == "1" && r.URL.Path == "/" {
					says(200, typeEvents, "data: "+good+"\n\n")(w, r, nil)
				}
			}}
			judge(t, s.call(t, client.Options{Header: secrets}), succeeds, "") // the call is continued by its event id
			if n := s.posts.Load(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
		})
	}
	t.Run("a stream that is somewhere else", func(t *testing.T) {
		t.Parallel()
		s := &bad{
			answer: with("Link", `</s>; rel="stream"`, says(200, typeEvents, ": here\n\n")),
			get:    with("Location", there, says(307, "", "")),
		}
		judge(t, s.call(t, client.Options{Header: secrets}), unknown, "another origin")
		if n := s.posts.Load(); n != 1 {
			t.Errorf("the request was sent %d times", n)
		}
	})
	t.Run("the other endpoint", func(t *testing.T) {
		t.Parallel()
		s := &bad{get: says(200, typeEvents, "event: endpoint\ndata: "+there+"/messages\n\n")}
		r := newRaw(t, mcptest.Serve(t, s), client.Options{Transport: client.SSE, Header: secrets})
		judge(t, r.tryOpen(), "the server wants messages to be posted to another origin: "+there, "")
	})
}

// The client's very first request ends with a clear error, too.
func TestInputFirst(t *testing.T) {
	t.Parallel()
	silent := func(_ http.ResponseWriter, r *http.Request, _ *bad) { away(r) }
	ticks := func(w http.ResponseWriter, r *http.Request, _ *bad) {
		w.Header().Set("Content-Type", typeEvents)
		hold(w, r, 10*time.Millisecond)
	}
	for _, test := range []struct {
		name   string
		init   func(http.ResponseWriter, *http.Request, *bad)
		get    func(http.ResponseWriter, *http.Request, *bad)
		want   string
		inits  int32
		within time.Duration // how long the server may take
	}{
		{"a web page", says(200, "text/html", "<p>"), nil, `the server sends what cannot be used: it answered with "text/html", not JSON`, 1, 0},
		{"an error", says(200, typeJSON, `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no such revision"}}`), nil, "no such revision", 1, 0},
		{"not found", says(404, "", ""), nil, "HTTP 404 Not Found", 1, 0},
		{"not allowed, and a page for who asks", says(405, "", ""), says(200, "text/html", "<p>"), "HTTP 405 Method Not Allowed", 1, 0},
		{"silence", silent, nil, "the server did not begin to answer within 2s", 1, 2 * time.Second},
		{"no endpoint", says(404, "", ""), ticks, "the server has been out of reach for", 2, 2 * time.Second},
		{"redirected elsewhere", with("Location", "http://192.0.2.1/", says(307, "", "")), nil, "redirected to another origin: http://192.0.2.1 (HTTP 307)", 1, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &bad{init: test.init, get: test.get}
				url, hc := serveInside(t, s)
				e := newRaw(t, url, client.Options{HTTPClient: hc, ConnectTimeout: test.within}).tryOpen()
				if e != nil {
					e.Message = strings.TrimPrefix(e.Message, unknown)
				}
				judge(t, e, test.want, "")
				if n := s.inits.Load(); n != test.inits {
					t.Errorf("the request was sent %d times", n)
				}
			})
		})
	}
}

// The session id is sent back unchanged, as far as a header can hold it.
func TestInputSessionID(t *testing.T) {
	t.Parallel()
	for id, fails := range map[string]bool{
		"a;b=\"c\", é": false, "\xff\xfe": false, "with blank": false, strings.Repeat("x", 64<<10): false,
		"\x01": true, "a\x00b": true,
	} {
		t.Run(fmt.Sprintf("%.10q", id), func(t *testing.T) {
			t.Parallel()
			s := &bad{answer: says(200, typeJSON, good)}
			s.init = wire("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\nMcp-Session-Id: " + id + "\r\n\r\n" + hello)
			url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Mcp-Session-Id"); s.inits.Load() > 0 && r.Method == http.MethodPost && got != id && !fails {
					t.Errorf("the session is called %.40q, want %.40q", got, id)
				}
				s.ServeHTTP(w, r)
			}))
			r := newRaw(t, url, client.Options{NoListen: true, ConnectTimeout: 5 * time.Second})
			if e := r.tryOpen(); (e != nil) != fails {
				t.Fatal(e)
			} else if fails {
				return
			}
			r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad"}}`)
			judge(t, errorIn(t, r.answer("1")), succeeds, "")
		})
	}
}

// The client waits for a silent server as long as its options say.
func TestInputSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &bad{answer: func(_ http.ResponseWriter, r *http.Request, _ *bad) { away(r) }}
		url, hc := serveInside(t, s)
		began := time.Now()
		e := s.callAt(t, url, client.Options{HTTPClient: hc, AnswerTimeout: 2 * time.Second, Silence: 3 * time.Second, ConnectTimeout: soon})
		judge(t, e, unknown+"the server did not begin to answer within 2s", "")
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it was given up after %v", took)
		}
		if n := s.posts.Load(); n != 1 {
			t.Errorf("the request was sent %d times", n)
		}
	})
}

// Comments keep a call waiting for as long as the host wants, and no longer.
func TestInputComments(t *testing.T) {
	t.Parallel()
	seen, gone := make(chan struct{}), make(chan struct{})
	s := &bad{answer: func(w http.ResponseWriter, r *http.Request, _ *bad) {
		defer close(gone)
		w.Header().Set("Content-Type", typeEvents)
		for n := range 1 << 20 {
			fmt.Fprint(w, ": nothing\n\n")
			if http.NewResponseController(w).Flush() != nil || r.Context().Err() != nil {
				return
			}
			if n == 1000 {
				close(seen)
			}
		}
	}}
	r := newRaw(t, mcptest.Serve(t, s), client.Options{NoListen: true, Silence: soon / 2, MaxMessage: 1000})
	r.open()
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad"}}`)
	wait(t, seen)
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"good"}}`)
	if m := r.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response }); string(m.ID) != "2" {
		t.Errorf("%s", m.Raw) // the first call still goes on
	}
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	wait(t, gone)
	if n := s.posts.Load(); n != 1 {
		t.Errorf("the request was sent %d times", n)
	}
}

// The client does not send back an event id that no header can hold, on any stream.
func TestInputEventID(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]client.Options{"standalone": {}, "HTTP+SSE": {Transport: client.SSE}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &bad{}
			s.get = func(w http.ResponseWriter, r *http.Request, s *bad) {
				w.Header().Set("Content-Type", typeEvents)
				if opts.Transport == client.SSE {
					fmt.Fprint(w, "event: endpoint\ndata: /\n\n", "data: "+hello+"\n\n")
				}
				fmt.Fprint(w, "retry: 1\nid: \x01\ndata:\n\n")
				if s.comes.Load() == 1 && opts.Transport == client.Auto {
					return
				}
				fmt.Fprint(w, notice("\x02", "x/there"))
				hold(w, r, time.Second)
			}
			r := newRaw(t, mcptest.Serve(t, s), opts)
			r.open()
			r.until(func(m jsonrpc.Message) bool { return m.Method == "x/there" })
		})
	}
}

// When a server ends the connection after each message, the client loses no message (SEP-1699).
func TestInputPolling(t *testing.T) {
	t.Parallel()
	polls := int32(testlong.Either(20, 100))
	s := &bad{answer: says(200, typeEvents, "id: 1\nretry: 1\ndata:\n\n")}
	s.get = func(w http.ResponseWriter, r *http.Request, s *bad) {
		text := "retry: 1\n\n"
		if s.comes.Load() > polls {
			text = "data: " + good + "\n\n"
		}
		says(200, typeEvents, text)(w, r, s)
	}
	judge(t, s.call(t, client.Options{}), succeeds, "")
	if n, m := s.posts.Load(), s.comes.Load(); n != 1 || m != polls+1 {
		t.Errorf("the request was sent %d times, and the client came %d times", n, m)
	}
}
