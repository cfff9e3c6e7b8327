package live

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/observe"
	"holdfast/internal/testlong"
)

// In a real browser the page shows a call while it runs, and does not run any script of a server.
func TestInBrowser(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it starts a browser")
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	l := New(Options{Token: "secret"})
	s := serve(t, l, Source{})
	evil := `<img src=x onerror="document.title='run'"><b>bold</b>`
	l.Happened(observe.SessionBegan{Session: observe.Session{Name: "s"}})
	w := begin(l, "s", evil)
	w.Stored(7)
	r := &observe.Reader{Session: "s", Number: 7, Door: observe.DoorPost, Came: time.Now(), Call: &w.Call}
	w.Came(r)
	message, _ := json.Marshal(map[string]any{"method": "notifications/progress", "params": map[string]any{"progress": 1, "total": 2, "message": evil}})
	w.Append(7, observe.Appended{Seq: 1, Data: message})

	page := open(t, chromium, s.URL)
	page.until(`document.querySelectorAll("svg .tick").length === 1 && document.querySelectorAll("svg .bar").length === 1`)
	w.Happened(observe.ReaderWent{Reader: r, Seq: 1, Why: observe.Cut})
	page.until(`document.querySelectorAll("svg .cut").length === 1 && document.querySelectorAll("svg .gap").length === 1 &&
		document.querySelector("#story").textContent === "Its connection was cut once. The call goes on, and what its server says is kept until the client is back."`)
	// A screen reader finds the whole table, and unchanged rows stay in the document while it reads.
	page.until(`document.querySelector("#readers").textContent === "1requestentry 1cut" && (window.row = document.querySelector("#calls tr")) && true`)
	w.Append(7, observe.Appended{Seq: 2, Data: []byte(`{}`), Last: true})
	w.End(7, observe.Result, 0)
	page.until(`document.querySelectorAll("svg .tick").length === 2 && document.querySelector("#story").textContent.startsWith("Nobody has read it to its end yet")`)
	back := &observe.Reader{Session: "s", Number: 7, Door: observe.DoorReplay, After: 1, Came: time.Now(), Call: &w.Call}
	l.Happened(observe.ReaderCame{Reader: back})
	l.Happened(observe.ReaderWent{Reader: back, Seq: 2, Why: observe.Finished})
	page.until(`document.querySelectorAll("svg .bar").length === 2 && window.row === document.querySelector("#calls tr") && window.row.textContent.includes("result") &&
		document.querySelector("#story").textContent === "Its connection was cut once. The call went on meanwhile, and its client has read it to the end."`)
	page.until(`document.title === "Holdfast" && !document.querySelector("main img, main b b") && document.querySelector("#calls button").textContent.startsWith("<img")`)
}

// If a call moves to another node while a third node's page is open, the page shows one row, and one picture.
func TestMoveInBrowser(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it starts a browser")
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	f := newNodes(t, "a", "b", "c")
	s := serve(t, f.pages["c"], *f.pages["c"].from())
	w := begin(f.pages["a"], "s", "count")
	w.Stored(7)
	w.Append(7, observe.Appended{Seq: 1, Data: []byte(`{"method":"notifications/message"}`)})

	page := open(t, chromium, s.URL)
	state := func(want, node string) {
		page.until(`document.querySelectorAll("#calls tr").length === 1 && document.querySelector("#calls .pill").textContent.startsWith("` + want +
			`") && document.querySelectorAll("#calls td")[2].textContent === "` + node + `"`)
	}
	state("in flight", "a")
	page.until(`document.querySelectorAll("svg .tick").length === 1 && document.querySelectorAll("#nodes tr").length === 3`)
	f.become("a", NodeLost)
	state("node lost", "a")
	page.until(`document.querySelector("#nodes").textContent.includes("lost") && document.querySelector("#inflight").textContent === "0"`)
	again := &observe.Watch{Call: observe.Call{Session: "s", Principal: "alice", ID: "1", Method: "tools/call", Tool: "count", Again: true}}
	observe.Observers{f.pages["b"]}.Begin(again, nil, nil)
	again.Stored(7)
	again.Append(7, observe.Appended{Seq: 2, Data: []byte(`{"method":"notifications/message"}`)})
	state("in flight", "b")
	page.until(`document.querySelectorAll("svg .tick").length === 2 && document.querySelectorAll("svg .over").length === 1`)
	again.Append(7, observe.Appended{Seq: 3, Data: []byte(`{}`), Last: true})
	again.End(7, observe.Result, 0)
	state("result", "b")
	page.until(`document.querySelectorAll("svg .tick").length === 3 && document.querySelector("#cancel").hidden`)
}

// If the user has not chosen a call, the page shows a tool call in flight, and not an earlier call.
func TestFollowsInBrowser(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it starts a browser")
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	l := New(Options{})
	s := serve(t, l, Source{})
	page := open(t, chromium, s.URL)
	page.until(`document.querySelector("#facts").textContent.startsWith("No call yet")`)
	first := &observe.Watch{Call: observe.Call{Session: "s", ID: "0", Method: "initialize"}}
	observe.Observers{l}.Begin(first, nil, nil)
	first.Stored(1)
	page.until(`document.querySelector("#life-title").textContent === "The life of initialize"`)
	first.Append(1, observe.Appended{Seq: 1, Data: []byte(`{}`), Last: true})
	first.End(1, observe.Result, 0)
	begin(l, "s", "count").Stored(2)
	page.until(`document.querySelector("#life-title").textContent === "The life of count"`)
	begin(l, "s", "other").Stored(3)
	page.until(`document.querySelectorAll("#calls tr").length === 3 && document.querySelector("#life-title").textContent === "The life of count"`)
	page.until(`(document.querySelector("#calls button").focus(), document.activeElement.click(), true)`)
	page.until(`document.querySelector("#life-title").textContent === "The life of other" && document.activeElement.textContent === "other"`)
}

// tab is a page in a browser.
type tab struct {
	t    *testing.T
	conn *websocket.Conn
	id   int
}

// open starts a browser with a page, and ends it with the test.
func open(t *testing.T, chromium, url string) *tab {
	t.Helper()
	dir, err := os.MkdirTemp("", "browser") // not TempDir: processes of the browser may still write for a moment
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	mcptest.Check(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		_ = os.RemoveAll(dir)
	})
	var at []string
	mcptest.Eventually(t, "what a page shows", 30*time.Second, func() bool {
		data, _ := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		at = strings.Fields(string(data))
		return len(at) == 2
	})
	var pages []struct {
		Type string `json:"type"`
		URL  string `json:"webSocketDebuggerUrl"`
	}
	mcptest.Eventually(t, "what a page shows", 30*time.Second, func() bool {
		res, err := http.Get("http://127.0.0.1:" + at[0] + "/json/list")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return json.NewDecoder(res.Body).Decode(&pages) == nil && len(pages) > 0 && pages[0].Type == "page"
	})
	conn, _, err := websocket.Dial(ctx, pages[0].URL, nil) //nolint:bodyclose // Dial closes it
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(16 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	p := &tab{t: t, conn: conn}
	p.do("Page.navigate", map[string]any{"url": url})
	return p
}

// do sends a command to the browser, and returns the result.
func (p *tab) do(method string, params map[string]any) json.RawMessage {
	p.t.Helper()
	p.id++
	data, _ := json.Marshal(map[string]any{"id": p.id, "method": method, "params": params})
	mcptest.Check(p.t, p.conn.Write(p.t.Context(), websocket.MessageText, data))
	for {
		_, data, err := p.conn.Read(p.t.Context())
		if err != nil {
			p.t.Fatal(err)
		}
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
		}
		if json.Unmarshal(data, &m) == nil && m.ID == p.id {
			return m.Result
		}
	}
}

// until waits until an expression is true on the page.
func (p *tab) until(expression string) {
	p.t.Helper()
	mcptest.Eventually(p.t, "what a page shows", 30*time.Second, func() bool {
		return strings.Contains(string(p.do("Runtime.evaluate", map[string]any{"expression": expression})), `"value":true`)
	})
}
