package webhook_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	sender "holdfast/internal/webhook"
	"holdfast/webhook"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(16)
	goleak.VerifyTestMain(m)
}

const secretText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func secret(t testing.TB) webhook.Secret {
	t.Helper()
	return mcptest.Must(webhook.ParseSecret(secretText))(t)
}

func rawSecret(t testing.TB) []byte {
	t.Helper()
	return mcptest.Must(base64.StdEncoding.DecodeString(strings.TrimPrefix(secretText, "whsec_")))(t)
}

func allow(t testing.TB, texts ...string) []webhook.Allowed {
	t.Helper()
	var all []webhook.Allowed
	for _, text := range texts {
		a := mcptest.Must(webhook.ParseAllowed(text))(t)
		all = append(all, a)
	}
	return all
}

// diary is a log that can be read while it is written.
type diary struct{ mcptest.Log }

func (d *diary) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(d, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// has waits until the log contains a text.
func (d *diary) has(t testing.TB, text string) {
	t.Helper()
	mcptest.Eventually(t, "the log to say "+text, time.Minute, func() bool { return strings.Contains(d.String(), text) })
}

// newSender returns a sender with short pauses between tries, and its log. The
// sender is closed at the end of the test.
func newSender(t testing.TB, o webhook.Options) (*sender.Sender, *diary) {
	t.Helper()
	d := &diary{}
	o.Logger = d.logger()
	o.Secret = secret(t)
	if o.Pause == 0 {
		o.Pause = time.Millisecond
	}
	s := sender.New(o)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s, d
}

// got is a POST that arrived.
type got struct {
	method, target string
	header         http.Header
	body           []byte
}

// receiver is a server with the test's answers. It keeps the POSTs that it gets.
type receiver struct {
	*httptest.Server
	got chan got
}

// newReceiver returns a receiver that answers with answer. n is the number of POSTs
// before.
func newReceiver(t testing.TB, answer func(n int, w http.ResponseWriter)) *receiver {
	t.Helper()
	return serve(t, answer, (*httptest.Server).Start)
}

func serve(t testing.TB, answer func(n int, w http.ResponseWriter), start func(*httptest.Server)) *receiver {
	t.Helper()
	r := &receiver{got: make(chan got, 10_000)}
	var mu sync.Mutex
	n := 0
	r.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		mu.Lock()
		before := n
		n++
		mu.Unlock()
		r.got <- got{q.Method, q.RequestURI, q.Header, body}
		if answer != nil {
			answer(before, w)
		}
	}))
	r.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	start(r.Server)
	t.Cleanup(r.Close)
	return r
}

// next returns the next POST.
func (r *receiver) next(t testing.TB) got {
	t.Helper()
	select {
	case g := <-r.got:
		return g
	case <-time.After(time.Minute):
		t.Fatal("no POST")
		return got{}
	}
}

// silent checks that no other POST has come.
func (r *receiver) silent(t testing.TB) {
	t.Helper()
	select {
	case g := <-r.got:
		t.Errorf("got %s %s %s", g.method, g.target, g.body)
	default:
	}
}

func event(url string) sender.Event {
	return sender.Event{URL: url, RequestID: []byte("7"), Time: time.Date(2025, 11, 25, 12, 0, 0, 0, time.UTC)}
}

// names is a DNS server for one name. Each query may get another IPv4 address.
func names(t testing.TB, address func(query int) netip.Addr) *net.Resolver {
	t.Helper()
	conn := mcptest.Must(net.ListenPacket("udp", "127.0.0.1:0"))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for n := 0; ; {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			reply, asked := answer(buf[:size], func() netip.Addr { return address(n) })
			if asked {
				n++
			}
			_, _ = conn.WriteTo(reply, from)
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "udp", conn.LocalAddr().String())
		},
	}
}

// answer answers a DNS query (RFC 1035, section 4), and reports whether it asked for
// an IPv4 address.
func answer(query []byte, address func() netip.Addr) (reply []byte, asked bool) {
	end := 12
	for query[end] != 0 {
		end += 1 + int(query[end])
	}
	end++
	asked = binary.BigEndian.Uint16(query[end:]) == 1 // A
	reply = append([]byte(nil), query[:end+4]...)
	reply[2], reply[3] = 0x84, 0x80 // an authoritative answer
	clear(reply[6:12])
	if asked {
		reply[7] = 1
		ip := address().As4()
		reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the name in the question, A, IN, TTL 0
		reply = append(reply, ip[:]...)
	}
	return reply, asked
}
