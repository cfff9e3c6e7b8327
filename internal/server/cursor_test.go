package server_test

import (
	"strings"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
)

// TestBadEventID is a Last-Event-ID of no stream. The answer is an error without any message, and
// the readers of the session's streams read on.
func TestBadEventID(t *testing.T) {
	t.Parallel()
	const secret = "not-for-others"
	n := newNode(t, config{})
	p, other := n.connect("2025-11-25", nil), n.connect("2025-11-25", nil)
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"` + secret + `"}}`)
	get := p.open("GET", "/mcp", "")
	listened := get.message().ID
	w := p.open("POST", "/mcp", call("hold", `{}`))
	link := &follower{p: p, seen: map[string]bool{}}
	if err := link.take(reply{header: w.head().Header}); err != nil {
		t.Fatal(err)
	}
	held := n.release(1)
	progress(held[0], 1, 1)
	id, _, _ := strings.Cut(w.message().ID, "~")
	theirs := other.open("POST", "/mcp", callAs(`"c"`, "hold", `{}`))
	heldToo := n.release(1)
	heldToo[0].Notify("notifications/message", []byte(`{"data":"`+secret+`"}`))
	foreign := theirs.message().ID

	dot := strings.Index(id, ".")
	if dot < 0 || strings.Count(id, ".") != 2 || !strings.HasSuffix(id, ".1") {
		t.Fatalf("the first message has the id %s", id)
	}
	stream, place := id[:dot], id[dot:] // MAC and number; epoch and sequence
	turned := "A"
	if stream[0] == 'A' {
		turned = "B"
	}
	for _, tc := range []struct {
		status, code int
		says         string
		ids          map[string]string
	}{
		{400, codeParams, "resume with an id that was received in this session", map[string]string{
			"garbled":                     "?",
			"a number":                    "7",
			"a uuid":                      "5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11",
			"as other servers have them":  "5f0c6b3e-7d5c-4b0e-9a33-0d1d7f2a9d11_42",
			"long":                        strings.Repeat("a", 200),
			"good, with a long tail":      id + "~" + strings.Repeat("a", 200),
			"not ASCII":                   strings.Repeat("\xc3\xa9", 20),
			"only dots":                   strings.Repeat(".", 30),
			"with another mark":           turned + id[1:],
			"without its end":             id[:len(id)-1],
			"without a place":             stream,
			"without a sequence":          id[:strings.LastIndex(id, ".")],
			"cut in the mark":             id[:10],
			"with more":                   id + "." + "1",
			"with a sign":                 stream + strings.Replace(place, ".1", ".-1", 1),
			"with a zero before":          id[:len(id)-1] + "01",
			"with a number too large":     id[:len(id)-1] + "zzzzzzzzzzzzzzzz",
			"of a call that is not":       stream[:len(stream)-1] + "9" + place,
			"of a call that is another's": foreign,
			"moved to another stream":     stream[:len(stream)-1] + "0" + place,
			"of a call, for the standalone one's name": listened[:strings.Index(listened, ".")-1] + "1" + place,
			"with a session before it":                 "AAAAAAAAAAAAAAAA." + id,
		}},
		{410, codeUnknown, "outcome unknown: messages after this cursor are no longer kept", map[string]string{
			"far ahead":               id[:len(id)-1] + "zzz",
			"just ahead":              id[:len(id)-1] + "2",
			"under another epoch":     stream + ".7.1",
			"ahead on the standalone": listened[:strings.LastIndex(listened, ".")] + ".zz",
		}},
	} {
		for what, bad := range tc.ids {
			r := p.open("GET", "/mcp", "", "Last-Event-ID: "+bad).all()
			refused(t, "an id "+what, r, tc.status, tc.code, tc.says)
			if strings.Contains(string(r.body), secret) {
				t.Errorf("an id %s: %s", what, r.body)
			}
			r = p.open("GET", link.link, "", "Last-Event-ID: "+bad).all()
			want := tc.status
			if what == "ahead on the standalone" {
				want = 400 // an id of another stream than the URL's
			}
			if r.status != want || strings.Contains(string(r.body), secret) {
				t.Errorf("an id %s at the stream URL: %d %s", what, r.status, r.body)
			}
		}
	}
	// A stream URL, with an id of the session's standalone stream.
	refused(t, "a standalone id at a call's URL", p.open("GET", link.link, "", "Last-Event-ID: "+listened).all(), 400, codeParams, "resume with")
	// A guessed stream URL gets the same error as any unknown session.
	for what, url := range map[string]string{
		"garbled":        "/mcp?stream=x",
		"cut":            link.link[:strings.Index(link.link, "~")-12],
		"for another":    strings.Replace(link.link, "=", "=A", 1),
		"of two":         "/mcp?stream=" + strings.SplitN(strings.SplitN(link.link, "=", 2)[1], ".", 2)[0] + "." + foreign,
		"with no name":   "/mcp?stream=." + id,
		"with no stream": "/mcp?stream=" + strings.SplitN(strings.SplitN(link.link, "=", 2)[1], ".", 2)[0],
	} {
		refused(t, "GET of a URL "+what, p.open("GET", url, "").all(), 404, codeServer, "initialize")
		refused(t, "POST to a URL "+what, p.open("POST", url, `{"jsonrpc":"2.0","id":1,"result":{}}`).all(), 404, codeServer, "initialize")
	}
	refused(t, "another session at the URL", other.open("GET", link.link, "").all(), 404, codeServer, "initialize")

	p.works("bad event ids")
	held[0].Result(result("mine"))
	heldToo[0].Result(result("theirs"))
	p.post(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":"more"}}`)
	for w, want := range map[*wire]string{w: "mine", theirs: "theirs", get: "more"} {
		if ev := w.message(); !strings.Contains(string(ev.Data), want) {
			t.Errorf("the good reader got %s, want %s", ev.Data, want)
		}
	}
}

// TestBadEventIDKeepsTheBroken is a call that lost its connection before the first event id: its
// client still gets the response after it has sent a bad id.
func TestBadEventIDKeepsTheBroken(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{server: server.Options{Retry: 20 * time.Millisecond}})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	url := w.head().Header.Get("Link")
	ahead := strings.Split(strings.TrimSuffix(strings.SplitN(strings.SplitN(url, ">", 2)[0], "~", 2)[0], "0"), ".")
	w.c.Close()
	n.sessionsQuiet()
	r := p.open("GET", "/mcp", "", "Last-Event-ID: "+strings.Join(ahead[1:], ".")+"7").all()
	refused(t, "an id ahead", r, 410, codeUnknown, "no longer kept")
	held[0].Result(result("late"))
	if ev := p.open("GET", "/mcp", "").message(); !strings.Contains(string(ev.Data), "late") {
		t.Errorf("got %s", ev.Data)
	}
}

// TestExpiredEventID is an event id of a call that ended too long ago: the answer is 410 and "outcome unknown".
func TestExpiredEventID(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{Keep: 20 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	f := &follower{p: p, seen: map[string]bool{}}
	if err := f.take(p.post(call("steps", `{"n":2}`))); err != nil {
		t.Fatal(err)
	}
	mcptest.Eventually(t, "the stream to go", time.Minute, func() bool { return n.store.Bytes() == 0 })
	for _, target := range []string{"/mcp", f.link} {
		refused(t, "an expired id at "+target, p.open("GET", target, "", "Last-Event-ID: "+f.last).all(), 410, codeUnknown, "outcome unknown")
	}
	p.works("an expired id")
}

// TestBadID is a request with an id that is in flight, alone or in a batch. The whole body is
// refused, and the first call goes on.
func TestBadID(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-03-26", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	w.head()
	held := n.release(1)
	again := callAs(`"c"`, "steps", `{"key":"bad"}`)
	fresh := callAs(`"f"`, "steps", `{"key":"bad"}`)
	for _, body := range []string{
		again, "[" + again + "]", "[" + again + "," + fresh + "]", "[" + fresh + "," + again + "]",
		`{"jsonrpc":"2.0","id":"c","method":"ping"}`, // light
	} {
		refused(t, body, p.post(body), 400, codeInvalid, "use an id once")
		if got := n.sessions.Calls(); got != 1 {
			t.Fatalf("%d calls are in flight", got)
		}
	}
	if n.runs("bad") > 0 {
		t.Error("a call ran that was refused")
	}
	if r := p.post(fresh); r.status != 200 || n.runs("bad") != 1 { // the ids of a refused batch are free
		t.Errorf("got %d %s", r.status, r.body)
	}
	held[0].Result(result("unharmed"))
	if ev := w.message(); !strings.Contains(string(ev.Data), "unharmed") {
		t.Errorf("got %s", ev.Data)
	}
	if r := p.post(again); r.status != 200 || n.runs("bad") != 2 { // an id is free once its call is answered
		t.Errorf("got %d %s", r.status, r.body)
	}
}
