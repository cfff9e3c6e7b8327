package servers_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/backend"
	"holdfast/internal/bridge"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// These tests send members that no revision defines, in every place of every kind of message, from a client to a server and
// back, over each path that messages take. Each such member is a mark, x-NAME. Both sides record the messages that they get.

// mark returns an unknown member. $x in a text stands for marks named after their place.
func mark(name string) string { return `"x-` + name + `":{"of":["` + name + `",1.50]}` }

var marks = regexp.MustCompile(`"x-([a-z0-9.]+)":\{"of":\["([a-z0-9.]+)",1\.50\]\}`)

// marksIn returns the names of the marks in a text.
func marksIn(text []byte) (names []string) {
	for _, m := range marks.FindAllSubmatch(text, -1) {
		if string(m[1]) == string(m[2]) {
			names = append(names, string(m[1]))
		}
	}
	return names
}

// marked replaces $x.PLACE in a text by marks with names that begin with of.
func marked(of, text string) string {
	return regexp.MustCompile(`\$x\.([a-z0-9]+)`).ReplaceAllStringFunc(text, func(at string) string { return mark(of + "." + at[3:]) })
}

const (
	envMirror = "MIRROR_HEARS" // the file to which a mirror writes the messages that it gets
	envSaid   = "MIRROR_SAYS"  // the same for the messages that it sends
)

// A mirror is a server that puts marks into all its messages.
type mirror struct {
	modern    bool
	questions mcptest.Questions
	mu        sync.Mutex
	listens   []jsonrpc.Message
}

// results are a mirror's results, by method. The names of their marks begin with the name of the method.
var results = map[string]string{
	"tools/list":               `{$x.result,"_meta":{$x.meta},"tools":[{"name":"work","title":"W",$x.item,"_meta":{$x.itemmeta},"inputSchema":{"type":"object",$x.schema},"annotations":{$x.annotations},"icons":[{"src":"https://e.x/i.png",$x.icon}]},{"name":"fail","inputSchema":{"type":"object"}},{"name":"plain","inputSchema":{"type":"object"}}]}`,
	"prompts/list":             `{$x.result,"_meta":{$x.meta},"prompts":[{"name":"work",$x.item,"_meta":{$x.itemmeta},"arguments":[{"name":"a",$x.argument}],"icons":[{"src":"https://e.x/i.png",$x.icon}]}]}`,
	"resources/list":           `{$x.result,"_meta":{$x.meta},"resources":[{"uri":"mirror://1","name":"r",$x.item,"_meta":{$x.itemmeta},"annotations":{$x.annotations}}]}`,
	"resources/templates/list": `{$x.result,"_meta":{$x.meta},"resourceTemplates":[{"uriTemplate":"mirror://{x}","name":"r",$x.item,"_meta":{$x.itemmeta},"annotations":{$x.annotations}}]}`,
	"resources/read":           `{$x.result,"_meta":{$x.meta},"contents":[{"uri":"mirror://1","text":"t",$x.content,"_meta":{$x.contentmeta}}]}`,
	"prompts/get":              `{$x.result,"_meta":{$x.meta},"messages":[{"role":"user",$x.message,"content":{"type":"text","text":"t",$x.content,"annotations":{$x.annotations}}}]}`,
	"completion/complete":      `{$x.result,"_meta":{$x.meta},"completion":{"values":["v"],$x.completion}}`,
	"tools/call":               `{$x.result,"_meta":{$x.meta},"structuredContent":{$x.structured},"content":[{"type":"text","text":"t",$x.content,"_meta":{$x.contentmeta},"annotations":{$x.annotations}},{"type":"x-hologram",$x.unknownblock},{"type":"resource_link","uri":"mirror://1","name":"r",$x.link,"icons":[{"src":"https://e.x/i.png",$x.icon}]}]}`,
	"logging/setLevel":         `{}`,
	"resources/subscribe":      `{}`,
	"ping":                     `{}`,
	"vendor/ask":               `{$x.result,"_meta":{$x.meta}}`,
}

const mirrorCapabilities = `{"tools":{"listChanged":true,$x.tools},"prompts":{},"resources":{"subscribe":true},"logging":{},"completions":{},$x.capability,"experimental":{$x.experimental},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"],$x.extension},$x.extensions}}`

var questions = [][2]string{
	{"sampling/createMessage", `{"messages":[{"role":"user","content":{"type":"text","text":"t",$x.content},$x.message}],"maxTokens":1,$x.params,"_meta":{$x.meta}}`},
	{"elicitation/create", `{"message":"m","requestedSchema":{"type":"object","properties":{},$x.schema},$x.params,"_meta":{$x.meta}}`},
	{"roots/list", `{$x.params,"_meta":{$x.meta}}`},
}

func kindOf(method string) string {
	return strings.ToLower(strings.NewReplacer("/", "", "_", "").Replace(method))
}

// answers returns the mirror's answers, by method.
func (s *mirror) answers() mcptest.Answers {
	fails := func(m jsonrpc.Message, _ func(string)) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, marked("s.error", `{"code":-32099,"message":"m",$x.error,"data":{$x.data}}`))
	}
	all := mcptest.Answers{"response": s.questions.Answered}
	for method, text := range results {
		all[method] = mcptest.Fixed(marked("s."+kindOf(method), text))
	}
	all["tools/call"], all["tools/call fail"], all["tools/call plain"] = s.work, fails, mcptest.Fixed(marked("s.plain", results["tools/call"]))
	all["initialize"] = mcptest.Fixed(marked("s.initialize", `{"protocolVersion":"2025-11-25","serverInfo":{"name":"mirror","version":"1",$x.info},"capabilities":`+mirrorCapabilities+`,$x.result,"_meta":{$x.meta}}`))
	if s.modern {
		all["initialize"] = func(m jsonrpc.Message, _ func(string)) string {
			return mcptest.Error(m, jsonrpc.CodeMethodNotFound, "no initialize")
		}
		all["server/discover"] = mcptest.Fixed(marked("s.serverdiscover", `{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":["2026-07-28"],"capabilities":`+mirrorCapabilities+`,$x.result,"_meta":{$x.meta,"io.modelcontextprotocol/serverInfo":{"name":"mirror","version":"1",$x.info}}}`))
		all["subscriptions/listen"] = func(m jsonrpc.Message, say func(string)) string {
			s.mu.Lock()
			s.listens = append(s.listens, m)
			s.mu.Unlock()
			listened(say, m, "notifications/subscriptions/acknowledged", `"notifications":`+string(jsonrpc.Field(m.Params, "notifications"))+`,`)
			return ""
		}
	}
	return all
}

// told emits a notification.
func told(say func(string), method, params string) {
	say(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, marked("s."+kindOf(method), params)))
}

// listened emits a notification of a listen.
func listened(say func(string), to jsonrpc.Message, method, more string) {
	told(say, method, `{`+more+`$x.params,"_meta":{"io.modelcontextprotocol/subscriptionId":`+string(to.ID)+`,$x.meta}}`)
}

// work emits all messages that a server can emit in a call, and then answers it.
func (s *mirror) work(in jsonrpc.Message, say func(string)) string {
	first := jsonrpc.Field(in.Params, "inputResponses") == nil
	if first {
		if token := jsonrpc.Field(in.Params, "_meta", "progressToken"); token != nil {
			told(say, "notifications/progress", `{"progressToken":`+string(token)+`,"progress":1,$x.params,"_meta":{$x.meta}}`)
		}
		told(say, "notifications/message", `{"level":"error","data":{$x.data},$x.params,"_meta":{$x.meta}}`)
		told(say, "notifications/vendor/told", `{$x.params,"_meta":{$x.meta}}`)
		s.mu.Lock()
		listens := slices.Clone(s.listens)
		s.mu.Unlock()
		for _, to := range listens {
			listened(say, to, "notifications/tools/list_changed", "")
			if jsonrpc.Field(to.Params, "notifications", "resourceSubscriptions") != nil {
				listened(say, to, "notifications/resources/updated", `"uri":"mirror://1",`)
			}
		}
		if !s.modern {
			told(say, "notifications/tools/list_changed", `{$x.params,"_meta":{$x.meta}}`)
			told(say, "notifications/resources/updated", `{"uri":"mirror://1",$x.params,"_meta":{$x.meta}}`)
		}
	}
	text := marked("s.toolscall", results["tools/call"])
	switch {
	case !s.modern:
		for _, q := range append(slices.Clone(questions), [2]string{"vendor/question", `{$x.params}`}) {
			s.questions.Ask(say, q[0], marked("s."+kindOf(q[0]), q[1]))
		}
	case first:
		var asks []string
		for i, q := range questions {
			asks = append(asks, fmt.Sprintf(`"q%d":{"method":%q,"params":%s}`, i, q[0], marked("s."+kindOf(q[0]), q[1])))
		}
		return mcptest.Result(in, `{"resultType":"input_required","requestState":"s","inputRequests":{`+strings.Join(asks, ",")+`}}`)
	default:
		text = strings.Replace(text, "{", `{"resultType":"complete",`, 1)
	}
	return mcptest.Result(in, text)
}

// runMirror runs a mirror on stdio.
func runMirror(modern bool) {
	heard, _ := os.OpenFile(os.Getenv(envMirror), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	said, _ := os.OpenFile(os.Getenv(envSaid), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	answers := (&mirror{modern: modern}).answers()
	mcptest.Stdio(func(m jsonrpc.Message, say func(string)) string {
		_, _ = heard.WriteString(string(m.Raw) + "\n")
		answer := answers.Script(m, func(text string) {
			_, _ = said.WriteString(text + "\n")
			say(text)
		})
		_, _ = said.WriteString(answer + "\n")
		return answer
	})
}

// A speaker is a client at one end of a path. It records the messages that it sends and gets.
type speaker struct {
	t     *testing.T
	era   string
	send  func(text string)
	tools string // the prefix of the tools' names

	mu    sync.Mutex
	said  []byte
	heard []byte
	ready map[string]chan jsonrpc.Message
}

// hear records a message of the server, and answers it if it is a question.
func (c *speaker) hear(data []byte) {
	m, err := jsonrpc.Parse(data)
	if err != nil {
		return
	}
	c.mu.Lock()
	c.heard = append(append(c.heard, data...), '\n')
	waits := c.ready[string(m.ID)]
	c.mu.Unlock()
	switch {
	case m.Kind == jsonrpc.Response && waits != nil:
		waits <- m
	case m.Kind == jsonrpc.Request:
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, reply(m.Method)))
	}
}

// reply returns the client's answer to a question.
func reply(method string) string {
	return marked("c."+kindOf(method), map[string]string{
		"sampling/createMessage": `{"role":"assistant","model":"m","content":{"type":"text","text":"t",$x.content,"_meta":{$x.contentmeta}},$x.result,"_meta":{$x.meta}}`,
		"elicitation/create":     `{"action":"accept","content":{$x.content},$x.result,"_meta":{$x.meta}}`,
		"roots/list":             `{"roots":[{"uri":"file:///r",$x.root,"_meta":{$x.rootmeta}}],$x.result,"_meta":{$x.meta}}`,
		"vendor/question":        `{$x.result}`,
	}[method])
}

func (c *speaker) say(text string) {
	c.mu.Lock()
	c.said = append(append(c.said, text...), '\n')
	c.mu.Unlock()
	c.send(text)
}

const clientCapabilities = `{"roots":{"listChanged":true},"sampling":{$x.sampling},"elicitation":{"form":{},$x.elicitation},$x.capability,"experimental":{$x.experimental},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"],$x.extension},$x.extensions}}`

// ofClient returns the members that describe the client in a modern request.
func ofClient() string {
	return `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":` + marked("c.discover", `{"name":"c","version":"1",$x.info}`) +
		`,"io.modelcontextprotocol/clientCapabilities":` + marked("c.discover", clientCapabilities)
}

// ask makes a request and waits for the response. more are members of the request's params.
func (c *speaker) ask(id, method, more string) jsonrpc.Message {
	c.t.Helper()
	meta := `$x.meta,"progressToken":"t` + id + `"`
	if c.era == "modern" {
		meta += `,"io.modelcontextprotocol/logLevel":"debug",` + ofClient()
	}
	waits := make(chan jsonrpc.Message, 1)
	c.mu.Lock()
	c.ready[id] = waits
	c.mu.Unlock()
	if more != "" {
		more += ","
	}
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, marked("c."+kindOf(method), `{`+more+`$x.params,"_meta":{`+meta+`}}`)))
	select {
	case m := <-waits:
		return m
	case <-time.After(patience):
		c.t.Errorf("%s is not answered", method)
		return jsonrpc.Message{}
	}
}

// hears reports whether the client has got a text, or waits for it no longer.
func (c *speaker) hears(word string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.heard, []byte(word)) || c.t.Context().Err() != nil
}

// play makes all kinds of requests.
func (c *speaker) play() {
	if c.era == "legacy" {
		c.ask("1", "initialize", `"protocolVersion":"2025-11-25","clientInfo":{"name":"c","version":"1",$x.info},"capabilities":`+clientCapabilities)
		c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		c.say(marked("c.told", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{$x.roots,"_meta":{$x.rootsmeta}}}`))
		c.say(marked("c.told", `{"jsonrpc":"2.0","method":"notifications/vendor/told","params":{$x.vendor,"_meta":{$x.vendormeta}}}`))
		c.ask("2", "logging/setLevel", `"level":"debug"`)
		c.ask("3", "resources/subscribe", `"uri":"mirror://1"`)
		task := c.ask("4", "tools/call", `"name":"`+c.tools+`plain","arguments":{$x.plain},"task":{}`)
		if id := jsonrpc.Field(task.Result, "task", "taskId"); id != nil {
			c.ask("5", "tasks/result", `"taskId":`+string(id))
		} else {
			c.t.Errorf("no task: %s", task.Raw)
		}
	} else {
		c.ask("1", "server/discover", "")
		c.say(`{"jsonrpc":"2.0","id":"listen","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true,"resourceSubscriptions":["mirror://1"]},"_meta":{` + ofClient() + `}}}`)
		for !c.hears("notifications/subscriptions/acknowledged") {
			time.Sleep(time.Millisecond)
		}
	}
	for i, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
		c.ask(fmt.Sprint(10+i), method, "")
	}
	c.ask("20", "resources/read", `"uri":"mirror://1"`)
	c.ask("21", "prompts/get", `"name":"`+c.tools+`work","arguments":{"a":"1"}`)
	c.ask("22", "completion/complete", `"ref":{"type":"ref/prompt","name":"`+c.tools+`work",$x.ref},"argument":{"name":"a","value":"",$x.argument}`)
	c.ask("23", "vendor/ask", "")
	c.ask("24", "tools/call", `"name":"`+c.tools+`fail","arguments":{$x.arguments}`)
	call := `"name":"` + c.tools + `work","arguments":{$x.arguments}`
	m := c.ask("25", "tools/call", call)
	for round := range 5 {
		inputs := jsonrpc.Field(m.Result, "inputRequests")
		if inputs == nil {
			break
		}
		var all []string
		jsonrpc.Each(inputs, func(name, value []byte) {
			all = append(all, fmt.Sprintf("%q:%s", name, reply(jsonrpc.String(jsonrpc.Field(value, "method")))))
		})
		m = c.ask(fmt.Sprint(30+round), "tools/call", call+`,"inputResponses":{`+strings.Join(all, ",")+`},"requestState":`+string(jsonrpc.Field(m.Result, "requestState")))
	}
}

// excepted returns the reason why a mark is not passed on, by the beginning of its name and by the path, or "". Any other mark that is lost is an error.
func excepted(name, era, on string, modern bool) (why string) {
	begins := func(all ...string) bool {
		return slices.ContainsFunc(all, func(one string) bool { return strings.HasPrefix(name, one) })
	}
	merged, shared := strings.HasPrefix(on, "merged"), strings.HasSuffix(on, "shared")
	switch {
	case begins("s.initialize.info", "s.serverdiscover.info") && merged:
		return "the info of all servers as one is Holdfast's"
	case begins("s.notificationssubscriptionsacknowledged") && (era == "legacy" || merged || shared):
		return "a listen is Holdfast's"
	case begins("c.tasksresult"):
		return "tasks are Holdfast's"
	case begins("c.serverdiscover") && (!modern || merged || shared):
		return "server/discover is answered from what the server has said to initialize"
	case begins("c.initialize", "c.discover", "c.told", "c.loggingsetlevel", "c.resourcessubscribe",
		"s.notificationsmessage", "s.notificationsvendor", "s.notificationsresourcesupdated", "s.sampling", "s.elicitation", "s.roots", "s.vendorquestion") && shared:
		return "a server that all clients share has one client without capabilities, and tells no client of what may be another's"
	case begins("c.told") && modern:
		return "clients of 2026-07-28 have no notifications"
	case begins("c.loggingsetlevel", "c.resourcessubscribe") && modern:
		return "it becomes the level of requests, and a listen"
	case begins("s.vendorquestion") && era == "modern":
		return "a client of 2026-07-28 is asked three things only"
	}
	return ""
}

// TestUnknownMembers sends members that no revision defines in each place of each kind of message, and checks which of them arrive.
func TestUnknownMembers(t *testing.T) {
	t.Parallel()
	for name, modern := range map[string]bool{"legacy server": false, "modern server": true} {
		for _, on := range []string{"process", "remote", "path", "merged", "shared", "merged shared"} {
			for _, era := range []string{"legacy", "modern"} {
				for _, through := range []string{"directly", "connect"} {
					t.Run(strings.Join([]string{era + " client", through, on, name}, ", "), func(t *testing.T) {
						t.Parallel()
						if through == "connect" && strings.Contains(on, "shared") {
							testlong.Only(t, "what connect adds is the same in front of each")
						}
						testlong.Part(t)
						passes(t, era, through, on, modern)
					})
				}
			}
		}
	}
}

func passes(t *testing.T, era, through, on string, modern bool) {
	dir := t.TempDir()
	heardFile, saidFile := filepath.Join(dir, "heard"), filepath.Join(dir, "said")
	exe := mcptest.Must(os.Executable())(t)
	kind := map[bool]string{false: "mirror", true: "mirror modern"}[modern]
	run := func() backend.Backend { return ownProcess(t, kind, envMirror+"="+heardFile, envSaid+"="+saidFile) }
	c := &speaker{t: t, era: era, ready: make(map[string]chan jsonrpc.Message)}
	var g *ground
	entry := func(settings string) string {
		return fmt.Sprintf(`{"command": %q, "env": {%q: %q, %q: %q, %q: %q}, "holdfast": {%s}}`, exe, standIn, kind, envMirror, heardFile, envSaid, saidFile, settings)
	}
	switch on {
	case "process":
		g = newGround(t, run())
	case "remote":
		g = newGround(t, far(newGround(t, run())))
	case "shared":
		g = newGround(t, share(t, run()))
	default:
		settings := `"tools": {"deny": ["none"]}`
		if on == "merged shared" {
			settings += `, "share": true`
		}
		path := "/mcp"
		if on == "path" {
			path = "/a/mcp"
		} else {
			c.tools = "a_"
		}
		g = newFileGround(t, path, `{"mcpServers": {"a": `+entry(settings)+`, "b": {"command": "`+exe+`", "env": {"`+standIn+`": "1"}}}, "holdfast": {"merge": true}}`)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	switch {
	case through == "connect":
		toBridge, fromBridge := mcptest.Duplex(t, func(in io.Reader, out io.Writer) error {
			_ = bridge.Run(ctx, g.url, in, out, &bridge.Options{})
			return nil
		})
		work.Go(func() {
			lines := bufio.NewReader(fromBridge)
			for {
				line, err := lines.ReadBytes('\n')
				if err != nil {
					return
				}
				c.hear(bytes.TrimSpace(line))
			}
		})
		out := make(chan string, 100)
		work.Go(func() {
			for {
				select {
				case text := <-out:
					_, _ = io.WriteString(toBridge, text+"\n")
				case <-ctx.Done():
					return
				}
			}
		})
		c.send = func(text string) { out <- text }
	case era == "legacy":
		ws := mcptest.MustDial(t, ctx, g.url)
		ws.SetReadLimit(1 << 20)
		work.Go(func() {
			for {
				_, data, err := ws.Read(ctx)
				if err != nil {
					return
				}
				c.hear(data)
			}
		})
		c.send = func(text string) { _ = ws.Write(ctx, websocket.MessageText, []byte(text)) }
	default:
		c.send = func(text string) { work.Go(func() { postModern(ctx, g.url, text, c.hear) }) }
	}
	c.play()
	read := func(file string) []byte { text, _ := os.ReadFile(file); return text }
	lost := func() (lost, came []string) {
		heard, said := read(heardFile), read(saidFile)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, way := range [][2][]byte{{c.said, heard}, {said, c.heard}} {
			got := marksIn(way[1])
			for _, name := range marksIn(way[0]) {
				switch came1, may := slices.Contains(got, name), excepted(name, era, on, modern) != ""; {
				case !came1 && !may && !slices.Contains(lost, name):
					lost = append(lost, name)
				case came1 && may && !slices.Contains(came, name):
					came = append(came, name)
				}
			}
		}
		return lost, came
	}
	for late := time.After(patience); ; {
		missing, came := lost()
		if len(missing) == 0 {
			if len(came) > 0 {
				t.Errorf("these come, but are said to be lost: %v", came)
			}
			break
		}
		select {
		case <-time.After(10 * time.Millisecond):
			continue
		case <-late:
			t.Fatalf("these are lost: %v", missing)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(marksIn(c.heard)); n < 50 {
		t.Errorf("only %d marks came: %s", n, c.heard)
	}
}

// postModern makes a request of 2026-07-28 over HTTP.
func postModern(ctx context.Context, url, text string, hear func([]byte)) {
	res, err := (&mcptest.Client{URL: url, HTTP: mcptest.Unpooled}).Send(ctx, http.MethodPost, text) //nolint:bodyclose // Hear closes it
	if err != nil {
		return
	}
	mcptest.Hear(res, hear)
}
