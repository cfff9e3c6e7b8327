package rpc

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/jsonrpc"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"method\":\"m\"}":                         `{"jsonrpc":"2.0","method":"m"}`,
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"caf\xe9\"}}":              "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"caf\uFFFD\"}}",
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\xc4\xe3\xba\xc3\"}}":     "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\uFFFD\uFFFD\uFFFD\uFFFD\"}}",
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\xed\xa0\xbd\xed\xb8\"}}": "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"" + strings.Repeat("\uFFFD", 5) + "\"}}",
		"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\t\x1b[1m\\\"\x00\"}}":    `{"jsonrpc":"2.0","id":7,"result":{"a":"\u0009\u001b[1m\"\u0000"}}`,
		"{\t\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"é\":\"\x01\"}}":               "{\t\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"é\":\"\\u0001\"}}",
		"[{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\xe9\"}}]":               "{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"\uFFFD\"}}",
	} {
		msgs, err := Parse([]byte(text))
		if err != nil || len(msgs) != 1 || string(msgs[0].Raw) != want {
			t.Errorf("%q: %q, %v", text, msgs, err)
		}
	}
	for _, text := range []string{"{\"jsonrpc\":\"2.0\",\x01\"method\":\"m\"}", "{\"jsonrpc\":\"2.0\",\"method\":\"\xe9\\", "", "x"} {
		if msgs, err := Parse([]byte(text)); err == nil {
			t.Errorf("%q is taken for %q", text, msgs)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"caf\xe9\t\"}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		msgs, err := Parse(append([]byte(nil), data...))
		if strict, _, serr := jsonrpc.ParseBody(append([]byte(nil), data...)); serr == nil && (err != nil || len(msgs) != len(strict)) {
			t.Fatalf("%v, but it is a message", err)
		}
		for _, m := range msgs {
			if _, err := jsonrpc.Parse(append([]byte(nil), m.Raw...)); err != nil {
				t.Fatalf("%q became %q: %v", data, m.Raw, err)
			}
		}
	})
}

func TestTable(t *testing.T) {
	t.Parallel()
	var table Table[int]
	request := func(id string) jsonrpc.Message {
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	cancelled := func(id string) string {
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		m = table.Cancelled(m)
		return string(m.Raw)
	}
	for n, id := range []string{`7`, `"a"`, `"8"`, `9`} {
		if m := table.Add(request(id), n); string(m.ID) != id {
			t.Errorf("%s is sent as %s", id, m.ID)
		}
	}
	for n, id := range []string{`7.0`, `"\u0061"`, `8`, `"9"`} { // spellings that servers may use
		if e := table.End([]byte(id)); e == nil || e.Value != n {
			t.Errorf("%s is not the request %d", id, n)
		}
		if table.Named([]byte(id)) != nil {
			t.Errorf("%s is still there", id)
		}
	}
	sent := table.Add(request(`"é"`), 1)
	again := table.Add(request(`"é"`), 2)
	if strings.Contains(string(sent.Raw), "é") || string(sent.ID) == string(again.ID) || sent.ID[0] == '"' {
		t.Errorf("the ids of ours are %s and %s", sent.ID, again.ID)
	}
	if got := cancelled(`"\u00e9"`); !strings.Contains(got, `"requestId":`+string(again.ID)) || table.Named(again.ID) != nil {
		t.Errorf("the server is told %s", got)
	}
	if e := table.End(sent.ID); e == nil || string(e.ID) != `"é"` {
		t.Errorf("the answer is for %v", e)
	}
	if got := cancelled(`5`); !strings.Contains(got, `"requestId":5`) || len(table.All()) != 0 || len(table.renamed) != 0 {
		t.Errorf("%s, and %d are left", got, len(table.All()))
	}
}

// inFlight has the requests of a test, by their ids.
type inFlight struct {
	mu    sync.Mutex
	ended map[string]error
	all   map[string]*testRequest

	givenUp bool
}

type testRequest struct {
	f  *inFlight
	id string
}

func (r *testRequest) Unreadable(err error) {
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	if r.f.all[r.id] == r {
		delete(r.f.all, r.id)
		r.f.ended[r.id] = err
	}
}

// begin adds a request in flight, and done removes it.
func (f *inFlight) begin(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[id] = &testRequest{f, id}
}

func (f *inFlight) done(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, id)
}

// err returns the error with which a request has ended.
func (f *inFlight) err(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

// forget clears the ended requests.
func (f *inFlight) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.ended)
}

func (f *inFlight) Named(id []byte) Request {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.all[string(jsonrpc.Key(id))]; r != nil {
		return r
	}
	return nil
}

func (f *inFlight) GivenUp() bool { return f.givenUp }

func (f *inFlight) InFlight() (all []Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.all {
		all = append(all, r)
	}
	return all
}

// TestUnreadable has texts of a server that are not a valid message. Each case lists which of the requests 7 and 8, or of 7 alone, they end, soon or
// late.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		text              string
		alone, soon, late string // ids that end: with 7 in flight; with 7 and 8, soon and in the end
	}{
		"NaN":                     {`{"jsonrpc":"2.0","id":7,"result":{"a":NaN}}`, "7", "7", "7"},
		"id at the end":           {`{"jsonrpc":"2.0","result":{"id":8,"a":[{"id":8}],"b":NaN},"id":7}`, "7", "7", "7"},
		"text before":             {`INFO: {"jsonrpc":"2.0","id":7,"result":{}}`, "7", "7", "7"},
		"text with braces before": {`[{x} "12:00"] {"jsonrpc":"2.0","id":7,"result":{}}`, "7", "7", "7"},
		"text after":              {`{"jsonrpc":"2.0","id":7,"result":{}} done`, "7", "7", "7"},
		"two in a line":           {`{"jsonrpc":"2.0","method":"notifications/x"}{"jsonrpc":"2.0","id":7,"result":{}}`, "7", "7", "7"},
		"two answers in a line":   {`{"jsonrpc":"2.0","id":7,"result":{}} {"jsonrpc":"2.0","id":8,"result":{}}`, "7", "7 8", "7 8"},
		"pretty-printed":          {"{\n  \"jsonrpc\": \"2.0\",\n  \"id\": 7,\n  \"result\": {\n    \"a\": 1\n  }\n}", "7", "7", "7"},
		"pretty-printed, id last": {"{\n  \"jsonrpc\": \"2.0\",\n  \"result\": {\n    \"a\": 1\n  },\n  \"id\": 7\n}", "7", "7", "7"},
		"error as text":           {`{"jsonrpc":"2.0","id":7,"error":"no"}`, "7", "7", "7"},
		"no version":              {`{"id":7,"result":{}}`, "7", "7", "7"},
		"another version":         {`{"jsonrpc":"1.0","id":7,"result":{}}`, "7", "7", "7"},
		"cut off":                 {`{"jsonrpc":"2.0","id":7,"resu`, "7", "7", "7"},
		"cut off after the id":    {`{"jsonrpc":"2.0","id":7`, "7", "7", "7"},
		"a line break in a text":  {"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"a\":\"b\nc\"}}", "7", "7", "7"},
		"cut off, then another":   {"{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{\"a\":\"b\n{\"jsonrpc\":\"2.0\",\"id\":7}", "7", "7", "7"},
		"two that are cut off":    {"{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\n{\"jsonrpc\":\"2.0\",\"id\":8,\"result\":{", "7", "7 8", "7 8"},
		"a brace, then NaN":       {"{\n{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":NaN}", "7", "7", "7"},
		"single quotes":           {`{'jsonrpc': '2.0', 'id': 7, 'result': {'a': True}}`, "7", "7", "7"},
		"id null":                 {`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad"}}`, "7", "", "7 8"},
		"no id":                   {`{"jsonrpc":"2.0","error":{"code":-32602,"message":"bad"}}`, "7", "", "7 8"},
		"no id that can be read":  {`{"jsonrpc":"2.0","id":?,"result":{}}`, "7", "", "7 8"},
		"NaN as id":               {`{"jsonrpc":"2.0","id":NaN,"result":{}}`, "7", "", "7 8"},
		"another id":              {`{"jsonrpc":"2.0","id":99,"result":{"a":NaN}}`, "", "", ""},
		"names without quotes":    {`{ jsonrpc: '2.0', id: 7, result: { text: "it's" } }`, "7", "7", "7"},
		"a spread request":        {`{"jsonrpc":"2.0","id":7,"method":"tools/call","result":{}}`, "7", "7", "7"},
		"both kinds of quotes":    {`{'jsonrpc': '2.0', 'result': {'a': "it's"}, 'id': 7}`, "7", "7", "7"},
		"a log with its id":       {`{"time":"t","level":"INFO","msg":"received","id":7,"error":null}`, "", "", ""},
		"a log with id null":      {`{"level":"warn","error":"cache miss","id":null}`, "", "", ""},
		"a log with a result":     {`{"ts":1,"tool":"t","id":7,"result":"ok"}`, "", "", ""},
		"a log with a version":    {`{"level":"info","jsonrpc":"2.0","msg":"version"}`, "", "", ""},
		"a banner with a version": {`Server {"jsonrpc":"2.0"} ready`, "", "", ""},
		"a version alone":         {`{"jsonrpc":"2.0"}`, "", "", ""},
		"another's answer, told":  {`DEBUG node answered {"jsonrpc":"2.0","error":{"code":1}}`, "", "", ""},
		"null as id, no version":  {`{"id":null,"error":{"code":1,"message":"m"}}`, "", "", ""},
		"a banner":                {`Server {v1} is "ready" on stdio`, "", "", ""},
		"a brace":                 {`{`, "", "", ""},
		"a line of a log":         {`{"level":"error","error":"x","msg":"id"}`, "", "", ""},
		"a log with an id":        {`{"level":"error","id":"abc","error":"x"}`, "", "", ""},
		"a request in a log":      {`DEBUG got {"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"result":1}}`, "", "", ""},
		"a broken notification":   {`{"jsonrpc":"2.0","method":"notifications/message","params":{"a":NaN}}`, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ids := range []string{"7", "7 8"} {
				synctest.Test(t, func(t *testing.T) {
					f := &inFlight{ended: make(map[string]error), all: make(map[string]*testRequest)}
					for _, id := range strings.Fields(ids) {
						f.all[id] = &testRequest{f, id}
					}
					u := NewUnreadable(f)
					defer u.Close()
					why := errors.New("no message")
					for line := range strings.SplitSeq(of.text, "\n") {
						u.Take([]byte(line), why)
					}
					check := func(when, want string) {
						t.Helper()
						synctest.Wait()
						f.mu.Lock()
						defer f.mu.Unlock()
						var got []string
						for _, id := range []string{"7", "8"} {
							if f.ended[id] != nil {
								got = append(got, id)
							}
						}
						if s := strings.Join(got, " "); s != want {
							t.Errorf("with %s in flight, %q have ended %s, want %q", ids, s, when, want)
						}
					}
					check("at once", "")
					soon, late := of.alone, of.alone
					if ids != "7" {
						soon, late = of.soon, of.late
					}
					time.Sleep(soonEnded)
					check("soon", soon)
					time.Sleep(lateEnded)
					check("in the end", late)
				})
			}
		})
	}
}

// The remains of a message that was cut off do not join the next line: once its request has ended, the next line begins another message.
func TestUnreadableCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &inFlight{ended: make(map[string]error), all: make(map[string]*testRequest)}
		u := NewUnreadable(f)
		defer u.Close()
		for id, text := range map[string]string{
			"7": `{"jsonrpc":"2.0","id":7,"result":{"a":"b`, "8": "{\n\"jsonrpc\": \"2.0\",\n\"id\": 8,\n\"result\": {", "9": "{\n\"jsonrpc\": \"2.0\",\n\"id\": 9,\n\"result\": {",
		} {
			f.begin(id)
			for line := range strings.SplitSeq(text, "\n") {
				u.Take([]byte(line), errors.New("no message"))
			}
			time.Sleep(soonEnded)
			synctest.Wait()
			if f.err(id) == nil {
				t.Errorf("%s ends no request", text)
			}
			f.forget()
		}
	})
}

// A request that was answered meanwhile keeps its answer. The server's own error is passed on. A secret is not quoted.
func TestUnreadableErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &inFlight{ended: make(map[string]error), all: make(map[string]*testRequest)}
		u := NewUnreadable(f)
		defer u.Close()
		end := func(text string) error {
			f.begin("7")
			u.Take([]byte(text), errors.New("no message"))
			time.Sleep(time.Second)
			synctest.Wait()
			defer f.forget()
			return f.err("7")
		}
		var own *jsonrpc.Error
		if err := end(`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad","data":[1]}}`); !errors.As(err, &own) || own.Code != -32602 || own.Message != "bad" || string(own.Data) != "[1]" {
			t.Errorf("the server's error became %v", err)
		}
		var other *UnreadableError
		if err := end(`{"jsonrpc":"2.0","id":7,"result":"https://user:hunter2@example.com/ ` + strings.Repeat("é", 300) + `",NaN}`); !errors.As(err, &other) ||
			strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "éé") || len([]rune(other.Quote)) > 2*maxQuote {
			t.Errorf("the error is %v", err)
		}
		f.begin("8")
		f.begin("7")
		u.Take([]byte(`{"jsonrpc":"2.0","id":null,"result":"of one of them"}`), errors.New("no message"))
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, id := range []string{"7", "8"} {
			if err := f.err(id); err == nil || strings.Contains(err.Error(), "of one of them") {
				t.Errorf("of two, %s ends with %v", id, err)
			}
		}
		f.forget()
		f.givenUp = true
		for _, text := range []string{`{"jsonrpc":"2.0","id":null,"result":"of the other"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"of the other"}}`} {
			if err := end(text); err == nil || strings.Contains(err.Error(), "of the other") {
				t.Errorf("after another was given up, a request ends with %v", err)
			}
		}
		f.begin("7")
		u.Take([]byte(`{"jsonrpc":"2.0","id":7,"result":NaN}`), errors.New("no message"))
		f.done("7") // the answer has come
		f.begin("7")
		time.Sleep(time.Minute)
		synctest.Wait()
		if f.err("7") != nil {
			t.Error("a later request under the same id has ended")
		}
		u.Take([]byte(`{"jsonrpc":"2.0","id":7,"result":NaN}`), errors.New("no message"))
		u.Close()
		time.Sleep(time.Minute)
		if f.err("7") != nil {
			t.Error("a request has ended after Close")
		}
	})
}

func TestOwnIDs(t *testing.T) {
	t.Parallel()
	var ids OwnIDs
	seen := make(map[string]bool)
	for range 1000 {
		id := string(ids.Next())
		if seen[id] || len(id) != 13 {
			t.Fatalf("id %s", id)
		}
		seen[id] = true
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	for text, of := range map[string]struct {
		id       string
		answered bool
	}{
		`{"jsonrpc":"1.0","id":5,"method":"m"}`:                     {`5`, true},
		`{"jsonrpc":"2.0","id":"a\"b","method":"m","params":"x"}`:   {`"a\"b"`, true},
		`{"jsonrpc":"2.0","method":"m","params":{"id":9},"id":5,}`:  {`5`, true},
		`{"jsonrpc":"2.0","id":5,"method":"m"`:                      {`5`, true},
		`{"jsonrpc":"2.0","id":{"a":1},"method":"m"}`:               {``, true},
		`{"jsonrpc":"2.0","id":null,"method":"m"}`:                  {``, true},
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`:              {``, true},
		`{"jsonrpc":"2.0","id":1,"error":"m"}`:                      {``, true},
		`{"jsonrpc":"2.0","id":5}`:                                  {`5`, true},
		`{"jsonrpc":"2.0","id":5,"method":"m","result":{}}`:         {`5`, true},
		`[{"jsonrpc":"1.0","id":1,"method":"m"}]`:                   {``, true},
		`{"jsonrpc":"2.0","id":1.5,"method":"m"}`:                   {``, true},
		"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"m\"}":    {``, true},
		`{"jsonrpc":"2.0","id":5,"method":"m"}{"id":6,"method":""}`: {``, true},
		`{"jsonrpc":"2.0","method":"notifications/x","params":1}`:   {``, false},
		`x`: {``, true},
		``:  {``, true},
	} {
		if id, answered := RequestID([]byte(text)); string(id) != of.id || answered != of.answered {
			t.Errorf("%s: %s, %v", text, id, answered)
		}
		var parts IDScanner // fed byte by byte
		for i := range text {
			parts.Take([]byte(text[i : i+1]))
		}
		if id, answered := parts.RequestID(); text != "" && text[0] == '{' && (string(id) != of.id || answered != of.answered) {
			t.Errorf("%s, in parts: %s, %v", text, id, answered)
		}
	}
}

// A server's output or answer is not taken for a request of the server with an id.
func TestAskedID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"jsonrpc":"1.0","id":5,"method":"m"}`:                   `5`,
		`{"jsonrpc":"2.0","id":5,"method":"m","params":{"x":`:     `5`,
		`{"jsonrpc":"2.0","id":5,"resu`:                           ``,
		`{"jsonrpc":"2.0","id":5,"method":"m","result":{"x":`:     ``,
		`{"id":5,"level":"info","request":{"id":5,"method":"m"}}`: ``,
		`{"method":"m"}`: ``,
		``:               ``,
	} {
		if id := AskedID([]byte(text)); string(id) != want {
			t.Errorf("%s: %s", text, id)
		}
	}
}
