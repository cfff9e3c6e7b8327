package client_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A bad server begins a session like any other, and answers a call of the tool
// "good". It answers a call of "held" when the test closes let, and a call of
// "bad" as the test says. It honours no idempotency keys.
type bad struct {
	posts  atomic.Int32 // the number of POSTs of the bad call
	comes  atomic.Int32 // the number of GETs
	inits  atomic.Int32
	let    chan struct{}
	answer func(w http.ResponseWriter, r *http.Request, s *bad) // answers the bad call
	get    func(w http.ResponseWriter, r *http.Request, s *bad) // answers a GET; nil: with 405
	init   func(w http.ResponseWriter, r *http.Request, s *bad) // answers initialize; nil: with a session
}

const (
	typeEvents = "text/event-stream"
	typeJSON   = "application/json"
	good       = `{"jsonrpc":"2.0","id":1,"result":{}}`
	// hello is the answer to an initialize with the id 0, as in raw.open.
	hello = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"bad","version":"1"}}}`
)

// ServeHTTP implements [http.Handler].
func (s *bad) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	mcptest.Methods{
		"GET": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
			if s.comes.Add(1); s.get == nil {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			s.get(w, r, s)
		},
		"initialize": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			if n := s.inits.Add(1); s.init == nil {
				mcptest.Greet(fmt.Sprint("s", n))(w, r, m)
				return
			}
			s.init(w, r, s)
		},
		"tools/call bad": func(w http.ResponseWriter, r *http.Request, _ jsonrpc.Message) {
			s.posts.Add(1)
			s.answer(w, r, s)
		},
		"tools/call held": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
			open(w, r, s.let, "")
			fmt.Fprint(w, data(mcptest.Result(m, "{}")))
		},
	}.ServeHTTP(w, r)
}

// call makes the bad call in a session in which another call is in flight, and then makes
// a third. It checks that these two are answered, and returns the error of the bad call.
func (s *bad) call(t *testing.T, opts client.Options) *jsonrpc.Error {
	t.Helper()
	return s.callAt(t, mcptest.Serve(t, s), opts)
}

// callAt is call for a server that is already served at the URL.
func (s *bad) callAt(t *testing.T, url string, opts client.Options) *jsonrpc.Error {
	t.Helper()
	s.let = make(chan struct{})
	opts.NoListen = true
	r := newRaw(t, url, opts)
	r.open()
	r.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"held"}}`)
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bad"}}`)
	answered := make(map[string]int)
	answer := func(id string) (m jsonrpc.Message) {
		t.Helper()
		return r.until(func(m jsonrpc.Message) bool {
			if m.Kind == jsonrpc.Response {
				answered[string(m.ID)]++
			}
			return m.Kind == jsonrpc.Response && string(m.ID) == id
		})
	}
	m := answer("1")
	close(s.let)
	if m := answer("2"); m.Error != nil {
		t.Errorf("the call that was in flight: %s", m.Error)
	}
	r.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"good"}}`)
	if m := answer("3"); m.Error != nil {
		t.Errorf("the next call: %s", m.Error)
	}
	if len(answered) != 3 || answered["1"]+answered["2"]+answered["3"] != 3 {
		t.Errorf("answered %v, want each once", answered)
	}
	return errorIn(t, m)
}

// errorIn returns the error of a response, or nil. It checks that the error is
// short, and has no words of the code.
func errorIn(t *testing.T, m jsonrpc.Message) *jsonrpc.Error {
	t.Helper()
	if m.Error == nil {
		return nil
	}
	e := &jsonrpc.Error{Message: jsonrpc.String(jsonrpc.Field(m.Error, "message")), Data: jsonrpc.Field(m.Error, "data")}
	e.Code, _ = strconv.Atoi(string(jsonrpc.Field(m.Error, "code")))
	for _, jargon := range []string{"net/http", "http: ", "json: ", "%!", "EOF", "context ", "refusal", "errC", "[]byte", "0x"} {
		if strings.Contains(e.Message, jargon) {
			t.Errorf("the message is for nobody outside: %q", e.Message)
		}
	}
	if len(e.Message) > 400 {
		t.Errorf("the message has %d bytes", len(e.Message))
	}
	return e
}

// elsewhere returns the URL of a server that no client is to contact.
func elsewhere(t *testing.T) string {
	t.Helper()
	return mcptest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another origin was contacted: %s %s with %v", r.Method, r.URL, r.Header)
	}))
}

// says answers with a status, a content type and a body.
func says(status int, media, body string) func(http.ResponseWriter, *http.Request, *bad) {
	return func(w http.ResponseWriter, _ *http.Request, _ *bad) {
		w.Header()["Content-Type"] = nil
		if media != "" {
			w.Header().Set("Content-Type", media)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// with sets a header, and then answers with another answer.
func with(name, value string, answer func(http.ResponseWriter, *http.Request, *bad)) func(http.ResponseWriter, *http.Request, *bad) {
	return func(w http.ResponseWriter, r *http.Request, s *bad) {
		w.Header().Set(name, value)
		answer(w, r, s)
	}
}

// wire answers with bytes as they stand, and ends the connection.
func wire(text string) func(http.ResponseWriter, *http.Request, *bad) {
	return func(w http.ResponseWriter, _ *http.Request, _ *bad) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, text)
	}
}

// once answers with first the first time, and with then after that.
func once(first, then func(http.ResponseWriter, *http.Request, *bad)) func(http.ResponseWriter, *http.Request, *bad) {
	return func(w http.ResponseWriter, r *http.Request, s *bad) {
		if s.posts.Load() == 1 {
			first(w, r, s)
			return
		}
		then(w, r, s)
	}
}

// endless writes a part again and again until its reader leaves, and at most 10 GB of it.
func endless(w io.Writer, part string) {
	chunk := []byte(strings.Repeat(part, 1+64<<10/len(part)))
	for n := 0; n < 10<<30; n += len(chunk) {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// away waits until the client has gone.
func away(r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(soon):
	}
}

// deflated packs text in the zlib format, or without the header of that format.
func deflated(text string, header bool) string {
	var b bytes.Buffer
	var w io.WriteCloser = zlib.NewWriter(&b)
	if !header {
		b.Reset()
		w, _ = flate.NewWriter(&b, flate.BestSpeed)
	}
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.String()
}

// gzipped packs text.
func gzipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}

// packs answers with packed, unless the client has asked for an answer that is not packed.
func packs(packed, plain func(http.ResponseWriter, *http.Request, *bad)) func(http.ResponseWriter, *http.Request, *bad) {
	return func(w http.ResponseWriter, r *http.Request, s *bad) {
		if r.Header.Get("Accept-Encoding") == "identity" {
			plain(w, r, s)
			return
		}
		with("Content-Encoding", "gzip", packed)(w, r, s)
	}
}

// judge checks the beginning of an error, and a part of it. Without a beginning it wants no error.
func judge(t *testing.T, e *jsonrpc.Error, want, tells string) {
	t.Helper()
	switch {
	case e == nil && want != succeeds:
		t.Errorf("the call succeeded, want %q", want)
	case e == nil:
	case want == succeeds, !strings.HasPrefix(e.Message, want), !strings.Contains(e.Message, tells):
		t.Errorf("%q, want %q … %q", e.Message, want, tells)
	}
}

// tryOpen sends initialize, and returns the error of the response.
func (r *raw) tryOpen() *jsonrpc.Error {
	r.t.Helper()
	r.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`)
	return errorIn(r.t, r.answer("0"))
}

func wait(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(soon):
		t.Fatal("waited in vain")
	}
}

// The client does not read answers into memory that are too large. This test does not run
// beside others, as it measures the memory of the process.
func TestInputHuge(t *testing.T) { //nolint:tparallel // see above
	json := func(w http.ResponseWriter, _ *http.Request, _ *bad) {
		w.Header().Set("Content-Type", typeJSON)
		fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":"`)
		endless(w, "x")
	}
	event := func(w http.ResponseWriter, _ *http.Request, _ *bad) {
		w.Header().Set("Content-Type", typeEvents)
		fmt.Fprint(w, `data: {"jsonrpc":"2.0","id":1,"result":"`)
		endless(w, "x")
	}
	lines := func(w http.ResponseWriter, _ *http.Request, _ *bad) {
		w.Header().Set("Content-Type", typeEvents)
		endless(w, "data: 0000000000000000000000000000000000\n")
	}
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request, *bad)
		want   string
	}{
		{"JSON", json, useless + "message is too large: at most 16777216 bytes are taken"},
		{"JSON of known length", with("Content-Length", fmt.Sprint(10<<30), json), useless + "message is too large: 10737418240 bytes, and at most 16777216 are taken"},
		{"an event", event, useless + "an event is larger than 16777216 bytes"},
		{"an event of many lines", lines, useless + "an event is larger than 16777216 bytes"},
		{"a reason", func(w http.ResponseWriter, _ *http.Request, _ *bad) {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusBadRequest)
			endless(w, "x")
		}, "HTTP 400 Bad Request"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &bad{answer: test.answer}
			var e *jsonrpc.Error
			grown := growth(func() { e = s.call(t, client.Options{}) })
			judge(t, e, test.want, "")
			if n := s.posts.Load(); n != 1 {
				t.Errorf("the request was sent %d times", n)
			}
			if grown > 64<<20 {
				t.Errorf("the heap grew by %d bytes", grown)
			}
		})
	}
}

// growth returns by how much the heap grew at most while f ran.
func growth(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	runtime.GC()
	first := read()
	// Garbage does not count: it is collected once there are 8 MiB of it.
	defer debug.SetGCPercent(debug.SetGCPercent(int(min(25, 8<<20*100/first))))
	most := first
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, read())
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	}()
	f()
	close(done)
	<-ended
	return most - first
}
