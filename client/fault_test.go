package client_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A fault describes the errors that the proxy makes at one request.
type fault struct {
	name    string
	delay   time.Duration // the wait before all else
	status  int           // the proxy answers with this status itself
	passed  bool          // the proxy answers after it has passed the request on
	twice   bool          // the request is sent on twice
	inside  bool          // the cut is in the request
	at      int           // bytes before the cut; negative: no cut by bytes
	after   time.Duration // time before the cut; 0: no cut by time
	stall   time.Duration // a pause in the response
	reset   bool
	deaf    bool // the client does not notice the cut
	haunted bool // the server does not notice the cut
}

// String implements fmt.Stringer.
func (tr fault) String() string {
	switch {
	case tr.name == "":
		return ""
	case tr.status != 0:
		return fmt.Sprintf("[%s: %d]", tr.name, tr.status)
	}
	return fmt.Sprintf("[%s: %d bytes, %v]", tr.name, tr.at, tr.delay+tr.after+tr.stall)
}

// A request is an HTTP request, parsed as far as needed.
type request struct {
	raw     []byte
	line    string
	body    []byte
	get     bool
	upgrade bool
	call    int // the number of the call
}

// These stand in place of a call's number.
const (
	noCall     = -1
	standalone = -2 // the request opens the standalone stream
)

// callNumber finds a call's number in the arguments of a tool.
var callNumber = regexp.MustCompile(`"tools/call".*"k":(\d+)|"k":(\d+).*"tools/call"`)

func readRequest(r *bufio.Reader) (*request, error) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, err
	}
	raw, err := httputil.DumpRequest(req, true)
	if err != nil {
		return nil, err
	}
	_, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	q := &request{
		raw: raw, line: req.Method + " " + req.URL.RequestURI(), body: body,
		get: req.Method == http.MethodGet, upgrade: req.Header.Get("Upgrade") != "", call: noCall,
	}
	if m := callNumber.FindSubmatch(q.body); m != nil {
		q.call, _ = strconv.Atoi(string(m[1]) + string(m[2]))
	}
	if last := req.Header.Get("Last-Event-Id"); last != "" {
		q.line += " after " + last
	}
	if req.Header.Get("Idempotency-Key") != "" {
		q.line += " keyed"
	}
	return q, nil
}

// faults are the kinds of fault, each with its share.
var faults = []struct {
	share int
	make  func(r *rand.Rand, q *request) fault
}{
	{6, func(r *rand.Rand, _ *request) fault { return cutAt(r, "response cut", false) }},
	{4, func(r *rand.Rand, q *request) fault {
		tr := cutAt(r, "request cut", true)
		tr.at = r.IntN(len(q.raw) + 1)
		if q.upgrade {
			tr.at = r.IntN(6000) // of the bytes after the request
		}
		return tr
	}},
	{3, func(r *rand.Rand, _ *request) fault {
		tr := cutAt(r, "cut in time", false)
		tr.at, tr.after = -1, time.Duration(1+r.IntN(150))*time.Millisecond
		return tr
	}},
	{3, func(r *rand.Rand, _ *request) fault {
		return fault{name: "late", at: -1, delay: time.Duration(r.IntN(60)) * time.Millisecond}
	}},
	{2, func(r *rand.Rand, _ *request) fault {
		return fault{name: "stalled", at: r.IntN(2000), stall: time.Duration(r.IntN(60)) * time.Millisecond}
	}},
	{2, func(r *rand.Rand, _ *request) fault {
		return fault{name: "not passed on", at: -1, status: 502 + r.IntN(2)}
	}},
	{1, func(r *rand.Rand, _ *request) fault {
		return fault{name: "passed on, and an error", at: 0, status: 502 + 2*r.IntN(2), passed: true, after: time.Duration(1+r.IntN(40)) * time.Millisecond}
	}},
	{3, func(r *rand.Rand, q *request) fault {
		return fault{name: "twice", at: -1, twice: q.get && !q.upgrade, delay: time.Duration(r.IntN(5)) * time.Millisecond}
	}},
}

// cutAt makes a cut at a place that may be in the header, the first events, or later.
func cutAt(r *rand.Rand, name string, inside bool) fault {
	tr := fault{name: name, inside: inside, at: r.IntN([]int{300, 700, 3000, 30000}[r.IntN(4)])}
	switch r.IntN(8) {
	case 0:
		tr.deaf, tr.name = true, name+", client not told"
	case 1:
		tr.haunted, tr.name = true, name+", server not told"
	case 2:
		tr.deaf, tr.haunted, tr.name = true, true, name+", nobody told"
	case 3, 4:
		tr.reset, tr.name = true, name+" by RST"
	}
	return tr
}

// mostRow is the greatest number of faulty lines in a row. All calls wait for the
// next line, and go on over a line without a fault. [patience] follows from it.
const mostRow = 6

// opensLine says whether a request opens a line: a connection that carries all messages.
func (q *request) opensLine() bool { return q.upgrade || strings.HasPrefix(q.line, "GET /sse") }

// plan returns the fault of a request, if any.
func (w *faultProxy) plan(conn uint64, n int, q *request) fault {
	tr := fault{at: -1}
	w.mu.Lock()
	spared := q.opensLine() && w.row >= mostRow
	w.mu.Unlock()
	if !spared {
		tr = w.draw(conn, n, q)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !q.opensLine():
	case tr.name == "":
		w.row = 0
	default:
		w.row++
	}
	return tr
}

// draw draws the fault of a request, if any.
func (w *faultProxy) draw(conn uint64, n int, q *request) fault {
	r := rand.New(rand.NewPCG(w.seed, conn<<16|uint64(n)))
	bad := w.bad.Load()
	if q.opensLine() {
		bad = min(3*bad, 700) // few requests open a line
	}
	if uint64(r.IntN(1000)) >= bad {
		return fault{at: -1}
	}
	all := 0
	for _, k := range faults {
		all += k.share
	}
	pick := r.IntN(all)
	var tr fault
	for _, k := range faults {
		if pick -= k.share; pick < 0 {
			tr = k.make(r, q)
			break
		}
	}
	first := q.call >= 0 && !q.get || q.call == standalone
	if w.kind && tr.deaf && first {
		return fault{at: -1}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if bytes.Contains(q.body, []byte(`"initialize"`)) {
		// A client without a session gives up soon, as it may. So there is one fault
		// at its first request, and none in which the server does not answer at all.
		if w.begun || tr.deaf {
			return fault{at: -1}
		}
		w.begun = true
		w.orphans++ // the client may never learn of the session that this request begins
	}
	if q.upgrade {
		w.orphans++ // nor of this one
	}
	w.counts[tr.name]++
	return tr
}
