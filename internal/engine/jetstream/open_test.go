package jetstream_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
)

// refused checks that a URL cannot be opened, and that the error contains want.
func refused(t *testing.T, url, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := embedded.Open(ctx, url, durable.Options{Logger: quiet})
	switch {
	case err == nil:
		_ = l.Close()
		t.Errorf("%s: opened", url)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s: got %q, want %q", url, err, want)
	case strings.Contains(err.Error(), "hunter2"):
		t.Errorf("%s: tells the password: %v", url, err)
	}
}

// The error for a wrong URL says what is wrong, without the password.
func TestURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"file:":                              "want file:DIR",
		"file://host/dir":                    "another host's files",
		"file:dir?max=much":                  "max=much: want a size",
		"file:dir?max=1KiB":                  "at least 16MiB",
		"file:dir?sync=never":                "sync=never: want always",
		"file:dir?replicas=3":                "want one of max sync",
		"nats:host":                          "want nats://HOST",
		"nats://":                            "want nats://USER",
		"nats://a:hunter2@":                  "want nats://USER",
		"nats://a:hunter2/x@host":            "want nats://USER",
		"nats://a:hunt%er2@host":             "want nats://USER",
		"nats://a:hunter2@h1,b:hunter2@h2":   "one user and password",
		"nats://a:hunter2@h?prefix=a.b":      "want letters, digits",
		"nats://a:hunter2@h?replicas=9":      "want 1 to 5",
		"nats://a:hunter2@h?password=x":      "want one of max replicas",
		"nats://a:hunter2@h?cert=x":          "belong together",
		"nats://a:hunter2@h?creds=/nowhere":  "nowhere",
		"tls://a:hunter2@h?ca=/nowhere":      "nowhere",
		"nats://a:hunter2@h?ca=%zz":          "query cannot be read",
		"nats://a:hunter2@127.0.0.1:1":       "connecting: ",
		"nats://a:hunter2@localhost:port,h2": "want nats://USER",
	} {
		t.Run(url, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := embedded.Open(ctx, url, durable.Options{Logger: quiet})
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunt") {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
}

// The error for a directory that cannot be used says why.
func TestDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	mcptest.Check(t, os.WriteFile(file, nil, 0o600))
	refused(t, "file:"+file, "is not a directory")
	refused(t, "file:"+filepath.Join(file, "below"), "is not a directory")
	if os.Getuid() != 0 { // root may use any directory
		shut := filepath.Join(dir, "shut")
		mcptest.Check(t, os.Mkdir(shut, 0o500))
		refused(t, "file:"+shut, "permission denied")
		refused(t, "file:"+filepath.Join(shut, "below"), "permission denied")
	}

	used := filepath.Join(dir, "used")
	l := must(t, "file:"+used)
	refused(t, "file:"+used, "in use by another process")
	if info, err := os.Stat(used); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v: not for its owner alone", info.Mode(), err)
	}
	mcptest.Check(t, l.Close())
	closed(t, must(t, "file:"+used))
}

func closed(t *testing.T, l durable.Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// A stream that cannot be read is not taken for a missing one.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := must(t, "file:"+dir)
	mcptest.Must(l.Append(t.Context(), "a", 0, []byte("frame")))(t)
	closed(t, l)
	meta := filepath.Join(dir, "jetstream", "$G", "streams", "holdfast-events", "meta.inf")
	mcptest.Check(t, os.WriteFile(meta, []byte("{"), 0o600))
	refused(t, "file:"+dir, "corrupt")
}

// The limits of a directory's streams are changed to those of the URL.
func TestLimitsFollow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, c := range []struct {
		query     string
		keep      time.Duration
		retention time.Duration
	}{
		{"", 0, 21 * time.Minute},
		{"?max=1GiB&sync=always", time.Hour, 121 * time.Minute},
		{"?max=100MiB&sync=1m", time.Minute, 15 * time.Minute},
	} {
		l := mcptest.Must(embedded.Open(t.Context(), "file:"+dir+c.query, durable.Options{Logger: quiet, Keep: c.keep}))(t)
		if got := l.Retention(); got != c.retention {
			t.Errorf("%q: keeps frames for %v, want %v", c.query, got, c.retention)
		}
		if err := l.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		closed(t, l)
	}
}

// Streams that another program has made are used unchanged, or refused.
func TestStreamsOfOthers(t *testing.T) {
	t.Parallel()
	s := mcptest.Must(natstest.Start(t.TempDir(), 1))(t)
	t.Cleanup(s.Close)
	nc := mcptest.Must(nats.Connect(s.URL()))(t)
	defer nc.Close()
	js := mcptest.Must(natsjs.New(nc))(t)
	closed(t, must(t, s.URL()+"?prefix=good"))
	good := make(map[string]natsjs.StreamConfig)
	for _, name := range []string{"events", "values"} {
		st := mcptest.Must(js.Stream(t.Context(), "good-"+name))(t)
		good[name] = st.CachedInfo().Config
	}
	for prefix, c := range map[string]struct {
		stream string
		change func(*natsjs.StreamConfig)
		want   string
	}{
		"memory":  {"events", func(c *natsjs.StreamConfig) { c.Storage, c.MaxBytes = natsjs.MemoryStorage, 1<<20 }, "has storage Memory, and needs File"},
		"queue":   {"events", func(c *natsjs.StreamConfig) { c.Retention = natsjs.WorkQueuePolicy }, "has retention WorkQueue"},
		"old":     {"events", func(c *natsjs.StreamConfig) { c.Discard = natsjs.DiscardOld }, "has discard policy DiscardOld, and needs DiscardNew"},
		"short":   {"events", func(c *natsjs.StreamConfig) { c.MaxAge = 5 * time.Minute }, "has max-age 5m0s, and needs 21m0s"},
		"nottl":   {"values", func(c *natsjs.StreamConfig) { c.AllowMsgTTL = false }, "has allow-msg-ttl false"},
		"many":    {"values", func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 9 }, "has max-msgs-per-subject 9, and needs 1"},
		"few":     {"events", func(c *natsjs.StreamConfig) { c.MaxMsgsPerSubject = 1 }, "has max-msgs-per-subject 1"},
		"direct":  {"values", func(c *natsjs.StreamConfig) { c.AllowDirect = false }, "has allow-direct false"},
		"subject": {"values", func(c *natsjs.StreamConfig) { c.Subjects = append(c.Subjects, "more") }, "has subjects"},
		"longer":  {"events", func(c *natsjs.StreamConfig) { c.MaxAge = time.Hour }, ""},
		"free":    {"values", func(c *natsjs.StreamConfig) { c.MaxBytes = -1 }, ""},
	} {
		conf := good[c.stream]
		conf.Name, conf.Subjects = prefix+"-"+c.stream, []string{strings.Replace(conf.Subjects[0], "good", prefix, 1)}
		c.change(&conf)
		if _, err := js.CreateStream(t.Context(), conf); err != nil {
			t.Fatalf("%s: %v", prefix, err)
		}
		if c.want != "" {
			refused(t, s.URL()+"?prefix="+prefix, c.want)
		} else {
			closed(t, must(t, s.URL()+"?prefix="+prefix))
		}
		st, err := js.Stream(t.Context(), conf.Name)
		if err != nil || st.CachedInfo().Config.MaxAge != conf.MaxAge || st.CachedInfo().Config.Discard != conf.Discard {
			t.Errorf("%s: the stream was changed: %v, %v", prefix, st.CachedInfo().Config, err)
		}
	}
	refused(t, s.URL()+"?prefix=good&replicas=3", "has replicas 1, and needs 3")
	refused(t, s.URL()+"?prefix=good&max=1GiB", "has max-bytes")
	refused(t, s.URL()+"?prefix=new&replicas=3", "needs 3 servers")
	refused(t, s.URL()+"?prefix=large&max=100TiB", "see max=")
	wrong := strings.Replace(s.URL(), natstest.Password, "hunter2", 1)
	refused(t, wrong, "do not take this user and password")
}

// If a server is silent at first, as on a busy machine, the connection is tried again.
func TestSilentAtFirst(t *testing.T) {
	t.Parallel()
	s := mcptest.Must(natstest.Start(t.TempDir(), 1))(t)
	t.Cleanup(s.Close)
	front := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var tries atomic.Int32
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			if tries.Add(1) == 1 {
				defer c.Close() // the server stays silent on this connection
				continue
			}
			behind, err := net.Dial("tcp", s.Addr(0))
			if err != nil {
				t.Error(err)
				c.Close()
				return
			}
			for from, to := range map[net.Conn]net.Conn{c: behind, behind: c} {
				serving.Go(func() {
					_, _ = io.Copy(to, from)
					to.Close()
				})
			}
		}
	})
	l := must(t, strings.Replace(s.URL(), s.Addr(0), front.Addr().String(), 1))
	if n := tries.Load(); n < 2 {
		t.Errorf("connected %d times, and the first was not to be answered", n)
	}
	closed(t, l)
	front.Close()
	serving.Wait()
}
