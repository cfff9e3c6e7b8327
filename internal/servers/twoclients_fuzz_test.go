package servers_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// Dice make choices by the bytes of an input. After its end they always choose the first.
type dice []byte

// of returns a number below n.
func (d *dice) of(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

func (d *dice) any(of ...string) string { return of[d.of(len(of))] }

// id returns an id or a token that may be another's.
func (d *dice) id() string {
	n := d.of(40)
	return d.any(fmt.Sprint(n), fmt.Sprintf("%q", fmt.Sprint(n)), fmt.Sprintf("%d.0", n), fmt.Sprintf("%de0", n), "null", `"\ud800"`, "-1", "[1]", fmt.Sprintf(`"holdfast-id-%d"`, n), `"mine"`)
}

// spelled returns a name, or one that looks like it.
func (d *dice) spelled(name string) string {
	switch d.of(8) {
	case 0:
		return strings.ToUpper(name)
	case 1:
		return strings.ToUpper(name[:1]) + name[1:]
	case 2:
		return fmt.Sprintf(`\u%04x%s`, name[0], name[1:])
	case 3:
		return strings.NewReplacer("k", "\u212a", "s", "\u017f").Replace(name)
	case 4:
		return map[string]string{"progressToken": "progress_token", "requestId": "request_id", "_meta": "meta"}[name]
	}
	return name
}

// member returns a member of an object, or two that look like each other.
func (d *dice) member(name string, value func() string) string {
	text := fmt.Sprintf(`"%s":%s`, d.spelled(name), value())
	if d.of(3) == 0 {
		text += fmt.Sprintf(`,"%s":%s`, d.spelled(name), value())
	}
	return text
}

func (d *dice) meta() string { return "{" + d.member("progressToken", d.id) + "}" }

// message returns a message of a hostile client.
func (d *dice) message(s *ground) string {
	method := d.any(protocol.MethodCancelled, "tools/call", protocol.MethodProgress, protocol.MethodInitialized, "initialize", "tools/list", "ping", "vendor/thing",
		protocol.MethodTaskStatus, "tasks/cancel", "resources/read", "logging/setLevel", "Notifications/Cancelled", "tools/call\\u0000", "server/discover", "subscriptions/listen", "completion/complete", "requests/resume")
	var params []string
	for range d.of(3) + 1 {
		switch d.of(5) {
		case 0:
			params = append(params, d.member("requestId", d.id))
		case 1:
			params = append(params, d.member("progressToken", d.id), `"progress":9`)
		case 2:
			params = append(params, d.member("_meta", d.meta))
		case 3:
			params = append(params, d.member("taskId", d.id))
		default:
			params = append(params, d.member("name", func() string {
				return d.any(`"`+s.tool+`work"`, `["`+s.tool+`work"]`, "7", "null", `"`+s.tool+`work\u0000"`, `"b_work"`)
			}))
		}
	}
	if method == "tools/call" && d.of(2) == 0 {
		params = append(params, `"name":"`+s.tool+`work"`)
	}
	if strings.HasPrefix(s.tool, "a_") && d.of(4) == 0 { // the other merged server is hostile, too
		var lines []string
		for range d.of(4) {
			lines = append(lines, string(jsonrpc.Quote(d.any(
				`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`+d.id()+`,"progress":50}}`,
				`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{`+d.member("requestId", d.id)+`}}`,
				`{"jsonrpc":"2.0","id":`+d.id()+`,"method":"notifications/cancelled","params":{"requestId":`+d.id()+`}}`,
				`{"jsonrpc":"2.0","id":`+d.id()+`,"result":{"content":[]}}`))))
		}
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"b_spray","arguments":{"lines":[%s]}}}`, d.id(), strings.Join(lines, ","))
	}
	params = append(params, `"arguments":{"text":"theirs","steps":2}`)
	body := fmt.Sprintf(`"method":"%s","params":{%s}`, method, strings.Join(params, ","))
	switch d.of(5) {
	case 0, 1:
		return fmt.Sprintf(`{"jsonrpc":"2.0",%s}`, body)
	case 2:
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[]}}`, d.id())
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0",%s,%s}`, d.member("id", d.id), body)
}

// An arena is a ground with two clients.
type arena struct {
	s       *ground
	victims []*victim

	mu      sync.Mutex
	session string // the session of the hostile client
	socket  *mcptest.Socket
}

func newArena(t testing.TB, ground string) *arena {
	a := &arena{s: grounds[ground](t)}
	all := a.s.victims(t)
	a.victims = []*victim{all["legacy"], all["modern"], all["socket"]}
	a.session = a.s.begin(t)
	return a
}

// attack sends messages of a hostile client, one after the other, and waits only briefly for each answer.
func (a *arena) attack(t testing.TB, d *dice) {
	for range d.of(12) + 1 {
		body := d.message(a.s)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		switch d.of(4) {
		case 0:
			_, _, _, _ = a.s.post(ctx, errand{session: a.session, body: body})
		case 1:
			_, _, _, _ = a.s.post(ctx, modernOf(body))
		case 2:
			_, _, _, _ = a.s.post(ctx, errand{session: d.any("x", "null", a.session[1:], a.session+"x"), body: body})
		default:
			if a.socket == nil {
				a.socket = a.s.dial(t)
				c := a.socket
				go func() {
					for {
						if _, _, err := c.Read(context.Background()); err != nil {
							return
						}
					}
				}()
			}
			if a.socket.Write(ctx, websocket.MessageText, []byte(body)) != nil {
				_ = a.socket.CloseNow()
				a.socket = nil
			}
		}
		cancel()
	}
}

// fight lets both clients send the messages that an input determines, and checks the answers to the honest one.
func (a *arena) fight(t testing.TB, data []byte) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	d := dice(data)
	v := a.victims[d.of(len(a.victims))]
	ended := make(chan error, 1)
	go func() { ended <- v.call(t.Context()) }()
	a.attack(t, &d)
	if err := <-ended; err != nil {
		t.Errorf("%v\nbeside what %x says", err, data)
	}
}

// fought are the grounds on which the two clients meet.
var fought = []string{"shared", "merged", "merged shared", "process", "modern", "path", "remote", "sdk"}

// Whatever ids and tokens of another client a hostile client uses, the other client's calls end rightly, each with its own result and progress.
func TestTwoClientsHostile(t *testing.T) {
	t.Parallel()
	rounds := testlong.Either(25, 1000)
	if testlong.Race {
		rounds = testlong.Either(8, 500)
	}
	for _, ground := range fought {
		t.Run(ground, func(t *testing.T) {
			t.Parallel()
			a := newArena(t, ground)
			r := rand.New(rand.NewPCG(1, uint64(slices.Index(fought, ground)))) //nolint:gosec // the same each time
			for range rounds {
				data := make([]byte, 300)
				for i := range data {
					data[i] = byte(r.Uint32())
				}
				if a.fight(t, data); t.Failed() {
					return
				}
			}
		})
	}
}

// FuzzTwoClients is TestTwoClientsHostile with the inputs of the fuzzer. The first byte chooses the ground.
func FuzzTwoClients(f *testing.F) {
	arenas := make([]*arena, len(fought))
	for i, ground := range fought {
		arenas[i] = newArena(f, ground)
		for v := range byte(3) {
			f.Add([]byte{byte(i), v, 11, 0, 0, 0, 5, 1, 2, 3, 1, 0, 7, 7, 7, 3, 4, 2, 1, 0, 9, 8, 1, 2, 3})
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		arenas[int(data[0])%len(arenas)].fight(t, data[1:])
	})
}
