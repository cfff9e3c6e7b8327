package engine_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"holdfast/engine"
	_ "holdfast/engine/file"
	_ "holdfast/engine/nats"
	_ "holdfast/engine/redis"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis"
	"holdfast/internal/engine/redis/redistest"
)

// kinds are all kinds of errors of Open, by name.
var kinds = map[string]error{
	"ErrScheme": engine.ErrScheme, "ErrNotImported": engine.ErrNotImported, "ErrURL": engine.ErrURL, "ErrUnreachable": engine.ErrUnreachable,
	"ErrInUse": engine.ErrInUse, "ErrIncompatible": engine.ErrIncompatible, "ErrPermission": engine.ErrPermission,
}

// refuses checks that Open fails for a URL, that the error has the kind want and no other, and that its text does not contain the password.
func refuses(t *testing.T, url string, want error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	if errors.Is(want, engine.ErrUnreachable) {
		ctx, stop = context.WithTimeout(ctx, time.Second)
		defer stop()
	}
	st, err := engine.Open(ctx, url, engine.Options{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_ = st.Close()
		t.Errorf("%s: opened", url)
		return
	}
	for name, kind := range kinds {
		if errors.Is(err, kind) != errors.Is(want, kind) {
			t.Errorf("%s: is %s: %v: %v", url, name, errors.Is(err, kind), err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%s: tells the password: %v", url, err)
	}
}

// The kind of error for each wrong URL, and for an address without a server.
func TestKindsOfURLs(t *testing.T) {
	t.Parallel()
	for kind, urls := range map[error][]string{
		engine.ErrScheme: {"", "memory", "/var/lib/holdfast", "rocks://host", "redis", ":"},
		engine.ErrURL: {
			"memory:DIR", "file:", "file://host/dir", "file:dir?sync=never", "file:dir?what=1",
			"nats:host", "nats://h?replicas=9", "nats://h?what=1", "nats://h?creds=/nowhere", "tls://h?ca=/nowhere", "nats://h?cert=/nowhere&key=/nowhere",
			"redis:host", "redis://me:hunter2@host/x", "redis://h1,h2", "redis://host?what=1", "redis://host?wait=-1", "rediss://host?prefix=",
			"redis+sentinel://host", "redis+cluster://host/7",
		},
		engine.ErrUnreachable: {"nats://me:hunter2@127.0.0.1:1", "redis://me:hunter2@127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1?master=m"},
	} {
		for _, url := range urls {
			t.Run(url, func(t *testing.T) {
				t.Parallel()
				refuses(t, url, kind)
			})
		}
	}
}

// The kind of error for a directory that cannot be opened.
func TestKindsOfDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, "file:"+file, engine.ErrURL)
	refuses(t, "file:"+filepath.Join(file, "below"), engine.ErrURL)
	if os.Getuid() != 0 { // root may write to any directory
		shut := filepath.Join(dir, "shut")
		if err := os.Mkdir(shut, 0o500); err != nil {
			t.Fatal(err)
		}
		refuses(t, "file:"+shut, engine.ErrPermission)
		refuses(t, "file:"+filepath.Join(shut, "below"), engine.ErrPermission)
	}
	used := filepath.Join(dir, "used")
	st, err := engine.Open(t.Context(), "file:"+used, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, "file:"+used, engine.ErrInUse)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	meta := filepath.Join(used, "jetstream", "$G", "streams", "holdfast-events", "meta.inf")
	if err := os.WriteFile(meta, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, "file:"+used, engine.ErrIncompatible)
}

// The kind of error for a NATS server that refuses a setting, or that is too old.
func TestKindsOfNATS(t *testing.T) {
	t.Parallel()
	s, err := natstest.Start(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	refuses(t, strings.Replace(s.URL(), natstest.Password, "hunter2", 1), engine.ErrPermission)
	refuses(t, s.URL()+"?prefix=new&replicas=3", engine.ErrIncompatible)
	refuses(t, s.URL()+"?prefix=large&max=100TiB", engine.ErrIncompatible)
	old := speaks(t, func(c net.Conn) {
		fmt.Fprint(c, `INFO {"server_id":"a","version":"2.9.0","max_payload":1048576,"proto":1}`+"\r\n")
		for lines := bufio.NewScanner(c); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "PING") {
				fmt.Fprint(c, "PONG\r\n")
			}
		}
	})
	refuses(t, "nats://"+old, engine.ErrIncompatible)
}

// The kind of error for a Redis that refuses a command, or that has the wrong version, role or policy.
func TestKindsOfRedis(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]error{
		"-NOAUTH Authentication required.":                      engine.ErrPermission,
		"-WRONGPASS invalid username-password pair":             engine.ErrPermission,
		"-NOPERM this user has no permissions to run 'ping'":    engine.ErrPermission,
		"-LOADING Redis is loading the dataset in memory":       engine.ErrUnreachable,
		"-ERR max number of clients reached":                    engine.ErrUnreachable,
		"-ERR unknown command 'PING'":                           engine.ErrIncompatible,
		"HTTP/1.1 400 Bad Request":                              engine.ErrIncompatible,
		"version 5.0.7, role master, policy noeviction":         engine.ErrIncompatible,
		"version 7.2.0, role slave, policy noeviction":          engine.ErrIncompatible,
		"version 7.2.0, role master, policy allkeys-lru":        engine.ErrIncompatible,
		"version 7.2.0, role master, policy noeviction, but DB": engine.ErrURL,
	} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			refuses(t, "redis://me:hunter2@"+speaks(t, func(c net.Conn) { answerRedis(c, said) })+"/3", want)
		})
	}
}

// answerRedis is a Redis that answers each command with said. If said begins with "version", it is the reply to INFO, and other commands succeed.
func answerRedis(c net.Conn, said string) {
	var version, role, policy string
	about, _ := fmt.Sscanf(strings.ReplaceAll(said, ",", ""), "version %s role %s policy %s", &version, &role, &policy)
	for lines := bufio.NewScanner(c); lines.Scan(); {
		switch word := strings.ToLower(lines.Text()); {
		case about == 3 && word == "hello":
			fmt.Fprint(c, "-ERR unknown command\r\n")
		case about == 3 && word == "select" && strings.HasSuffix(said, "DB"):
			fmt.Fprint(c, "-ERR DB index is out of range\r\n")
		case about == 3 && (word == "auth" || word == "select" || word == "setname"):
			fmt.Fprint(c, "+OK\r\n")
		case about == 3 && word == "ping":
			fmt.Fprint(c, "+PONG\r\n")
		case about == 3 && word == "info":
			text := fmt.Sprintf("redis_version:%s\r\nrole:%s\r\nmaxmemory_policy:%s\r\n", version, role, policy)
			fmt.Fprintf(c, "$%d\r\n%s\r\n", len(text), text)
		case about != 3 && (word == "hello" || word == "auth" || word == "ping" || word == "select" || word == "setname"):
			fmt.Fprint(c, said+"\r\n")
		}
	}
}

// speaks returns the address of a server that calls with for each connection, until the test ends.
func speaks(t *testing.T, with func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				with(c)
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return l.Addr().String()
}

// Each engine refuses a store that a newer version has written to, and opens a store of this version again.
func TestNewerFormat(t *testing.T) {
	t.Parallel()
	s, err := natstest.Start(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "new")
	for name, test := range map[string]struct {
		url  string
		open opener
	}{
		"file":  {"file:" + file, embedded.Open},
		"nats":  {s.URL(), jetstream.Open},
		"redis": {redistest.Start(t).URL(), redis.Open},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opens := func() {
				t.Helper()
				st, err := engine.Open(t.Context(), test.url, engine.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if err := st.Close(); err != nil {
					t.Error(err)
				}
			}
			opens()
			opens()
			log, err := test.open(t.Context(), test.url, durable.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, was, _, err := log.Get(t.Context(), "format")
			if err == nil {
				_, err = log.Put(t.Context(), "format", was, []byte{2}, time.Hour)
			}
			if err := errors.Join(err, log.Close()); err != nil {
				t.Fatal(err)
			}
			refuses(t, test.url, engine.ErrIncompatible)
		})
	}
}
