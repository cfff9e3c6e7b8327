package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// A secretTry is a command line, or a variable of the environment, that holds a
// password.
type secretTry struct {
	args  []string
	env   string // NAME=VALUE
	stdin string
}

// clientURLs are URLs of servers. SECRET stands for the password, FREE for an address on which
// no program listens, SERVER for the address of a server that repeats the request in its errors.
var clientURLs = []string{
	"http://user:SECRET@FREE/mcp",
	"http://SECRET@FREE/mcp",
	"http://user:SECRET@127.0.0.1:99999/mcp",
	"http://user:SECRET@127.0.0.1:port/mcp",
	"http://user:SECRET@[::1/mcp",
	"http://user:SECRET@[::zz]:1/mcp",
	"http://user:SECRET@::1:80/mcp",
	"http://user:SECRET%zz@FREE/mcp",
	"http://user:SECRET@/mcp",
	"http:user:SECRET@FREE/mcp",
	"http:/user:SECRET@FREE/mcp",
	"http:///user:SECRET@FREE/mcp",
	"ftp://user:SECRET@FREE/mcp",
	"user:SECRET@FREE/mcp",
	"://user:SECRET@FREE/mcp",
	"1http://user:SECRET@FREE/mcp",
	"http://user:SECRET@exa mple/mcp",
	"http://user:SECRET@nobody.invalid/mcp",
	"http://user:SECRET\x7f@FREE/mcp",
	"http://user:SECRET\n@FREE/mcp",
	"http://user:SECRET/x@FREE/mcp",
	"http://user:SECRET#x@FREE/mcp",
	"http://user:SECRET?x@FREE/mcp",
	"http://user:x[SECRET@FREE/mcp",
	"http://user:SECRET@x@FREE/mcp",
	"http://FREE/mcp?api_key=SECRET",
	"http://FREE/mcp?api_key=SECRET%zz",
	"http://FREE/mcp?SECRET",
	"http://FREE/mcp#SECRET",
	"http://FREE/%zz?api_key=SECRET",
	"http://user:SECRET@SERVER/401",
	"http://user:SECRET@SERVER/500",
	"http://user:SECRET@SERVER/elsewhere",
	"http://SERVER/elsewhere?api_key=SECRET",
	"http://SERVER/broken?api_key=SECRET",
	"http://user:SECRET@SERVER/rpc",
	"ws://user:SECRET@FREE/mcp",
	"ws://FREE/mcp?api_key=SECRET",
	"ws://SERVER/401?api_key=SECRET",
	"ws://user:SECRET@SERVER/broken",
	"ws://user:SECRET@127.0.0.1:99999/mcp",
	"wss://FREE/mcp?api_key=SECRET",
	"https://user:SECRET@FREE/mcp",
	"https://user:SECRET@SERVER/401",
}

// storeURLs are values of --store.
var storeURLs = []string{
	"redis://user:SECRET@FREE/0",
	"redis://:SECRET@FREE",
	"redis://SECRET@FREE",
	"redis://user:SECRET@127.0.0.1:99999/0",
	"redis://user:SECRET@127.0.0.1:port",
	"redis://user:SECRET@[::1/0",
	"redis://user:SECRET%zz@FREE",
	"redis://user:SECRET/x@FREE",
	"redis://user:SECRET#x@FREE",
	"redis://user:SECRET?x@FREE",
	"redis://user:SECRET@FREE/SECRET",
	"redis://FREE/SECRET",
	"redis://FREE?password=SECRET",
	"redis://FREE?passwrod=SECRET",
	"redis://FREE?SECRET",
	"redis://FREE?dial_timeout=SECRET",
	"redis://FREE?db=SECRET",
	"redis://FREE?prefix=SECRET!",
	"redis://FREE?wait=SECRET",
	"redis://user:SECRET@SERVER",
	"redis:user:SECRET@FREE",
	"redis:/user:SECRET@FREE",
	"rediss://user:SECRET@SERVER",
	"redis+sentinel://user:SECRET@FREE?master=m",
	"redis+sentinel://user:SECRET@FREE",
	"redis+sentinel://FREE?master=m&sentinel_password=SECRET",
	"redis+sentinel://FREE?master=m&sentinel_password=x&SECRET",
	"redis+sentinel://FREE?master=m&password=SECRET",
	"redis+sentinel://FREE?master=m&sentinel_passwrod=SECRET",
	"redis+sentinel://FREE?master=SECRET",
	"redis+sentinel://FREE/SECRET?master=m",
	"redis+cluster://user:SECRET@FREE,FREE",
	"redis+cluster://FREE?max_redirects=SECRET",
	"redis+cluster://FREE?addr=user:SECRET@x",
	"redis+cluster://FREE/SECRET",
	"redis+SECRET://FREE",
	"nats://user:SECRET@FREE",
	"nats://SECRET@FREE",
	"nats://user:SECRET@127.0.0.1:99999",
	"nats://user:SECRET@127.0.0.1:port",
	"nats://user:SECRET@[::1",
	"nats://user:SECRET%zz@FREE",
	"nats://user:SECRET/x@FREE",
	"nats://user:SECRET@FREE,other:SECRET2@FREE",
	"nats://FREE?token=SECRET",
	"nats://FREE?SECRET=1",
	"nats://FREE?prefix=SECRET.",
	"nats://FREE?replicas=SECRET",
	"nats://FREE?max=SECRET",
	"nats://FREE/SECRET",
	"nats://user:SECRET@SERVER",
	"nats:user:SECRET@FREE",
	"tls://user:SECRET@SERVER",
	"file://user:SECRET@host/dir",
	"memory://user:SECRET@host",
	"postgres://user:SECRET@FREE/db",
	"user:SECRET@FREE",
	"SECRET@FREE",
	"SECRET",
	"://user:SECRET@FREE",
}

// strayURLs are command lines with a URL in the wrong place, as when an argument is left out or two are swapped.
var strayURLs = [][]string{
	{"URL"},
	{"serve", "URL"},
	{"serve", "--demo", "URL"},
	{"serve", "--demo", "--listen", "URL"},
	{"serve", "--demo", "--admin", "URL"},
	{"serve", "--demo", "--path", "URL"},
	{"serve", "--demo", "--sse-path", "URL"},
	{"serve", "--demo", "--response", "URL"},
	{"serve", "--demo", "--retry", "URL"},
	{"serve", "--demo", "--max-body", "URL"},
	{"serve", "--demo=URL"},
	{"serve", "--demo", "--webhook-allow", "URL"},
	{"serve", "--demo", "--webhook-secret", "URL"},
	{"serve", "--demo", "--webhook-secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "--webhook-allow", "URL"},
	{"serve", "--URL"},
	{"serve", "-URL"},
	{"--log-level", "URL", "version"},
	{"--log-format", "URL", "version"},
	{"version", "URL"},
	{"tools", "URL", "URL"},
	{"tools", "--transport", "URL", "http://FREE/mcp"},
	{"tools", "--header", "URL", "http://FREE/mcp"},
	{"tools", "--URL"},
	{"connect", "--state", "/dev/null/URL", "http://FREE/mcp"},
	{"call", "URL"},
	{"call", "http://FREE/mcp", "URL"},
	{"call", "DEMO", "URL"},
	{"call", "DEMO", "echo", "URL"},
	{"call", "DEMO", "echo", "--arg", "URL"},
	{"call", "DEMO", "count", "--arg", "to=URL"},
	{"call", "DEMO", "count", "--arg", "too=URL"},
	{"resume", "URL"},
	{"resume", "hf1.URL"},
	{"resume", "URL", "URL"},
	{"status", "URL"},
	{"status", "--state", "/dev/null/URL"},
	{"help", "URL"},
	{"completion", "URL"},
}

// secretTries returns all tries.
func secretTries() []secretTry {
	var all []secretTry
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n"
	for i, u := range clientURLs {
		all = append(all,
			secretTry{args: []string{"tools", u}},
			secretTry{args: []string{"connect", "--log-level", "debug", u}, stdin: hello},
		)
		switch i % 3 {
		case 0:
			all = append(all, secretTry{args: []string{"call", u, "echo", "--arg", "text=x"}})
		case 1:
			all = append(all, secretTry{args: []string{"resume", "TOKEN", u}})
		case 2:
			all = append(all, secretTry{args: []string{"status", "TOKEN", u}})
		}
	}
	for i, u := range storeURLs {
		try := secretTry{args: []string{"serve", "--demo", "--listen", "127.0.0.1:0", "--store", u}}
		if i%4 == 0 {
			try = secretTry{args: []string{"serve", "--demo", "--listen", "127.0.0.1:0", "--log-format", "json"}, env: "HOLDFAST_STORE=" + u}
		}
		all = append(all, try)
	}
	for _, args := range strayURLs {
		all = append(all, secretTry{args: args})
	}
	for _, name := range []string{"LISTEN", "ADMIN", "PATH", "RESPONSE", "KEEP", "MAX_BODY", "WEBHOOK_ALLOW", "WEBHOOK_SECRET", "LOG_LEVEL", "DEMO"} {
		all = append(all, secretTry{args: []string{"serve", "--demo"}, env: "HOLDFAST_" + name + "=URL"})
	}
	all = append(all,
		secretTry{args: []string{"tools", "http://FREE/mcp"}, env: "HOLDFAST_TRANSPORT=URL"},
		secretTry{args: []string{"tools", "http://FREE/mcp"}, env: "HTTP_PROXY=http://user:SECRET@proxy.invalid:99999"},
		secretTry{args: []string{"tools", "http://nobody.invalid/mcp"}, env: "HTTP_PROXY=http://user:SECRET@FREE"},
		secretTry{args: []string{"tools", "http://nobody.invalid/mcp"}, env: "HTTP_PROXY=http://user:SECRET%zz@FREE"},
	)
	return all
}

// TestSecretsInURLs gives the program URLs with a password, most of them wrong in some
// way. The program prints the password nowhere, and names no file after it.
func TestSecretsInURLs(t *testing.T) {
	t.Parallel()
	server := repeater(t)
	free, demo := testport.Addr(t), demoAt(t)+"/mcp"
	// These have characters that may confuse a shell or a parser of URLs.
	secrets := []string{"s3cr3tWord", "s3cr3t%2FWord", "s3cr3t%20Wo%25rd"}
	tries := secretTries()
	if n := len(tries); n < 130 {
		t.Fatalf("%d tries, want 130", n)
	}
	every := testlong.Either(20, 1)
	var leaks atomic.Int32
	var work sync.WaitGroup
	free40 := make(chan struct{}, 40) // the programs wait more than they work
	for i, try := range tries {
		if i%every != 0 {
			continue
		}
		secret := secrets[i%len(secrets)]
		put := strings.NewReplacer("SECRET", secret, "FREE", free, "SERVER", server, "DEMO", demo,
			"URL", "http://user:"+secret+"@"+free+"/mcp")
		free40 <- struct{}{}
		work.Go(func() {
			defer func() { <-free40 }()
			args := make([]string, len(try.args))
			for i, a := range try.args {
				args[i] = put.Replace(a)
			}
			if i := len(args) - 2; i >= 0 && args[i] == "TOKEN" {
				args = append(args[:i], tokenFor(t, args[i+1]))
			}
			said, names := runTry(t, args, put.Replace(try.env), try.stdin)
			if form := found(secret, resumeWith.ReplaceAllString(said, ""), names); form != "" {
				leaks.Add(1)
				t.Errorf("holdfast %q (%s) told %q:\n%s\nfiles: %s", args, try.env, form, said, names)
			}
		})
	}
	work.Wait()
	if n := leaks.Load(); n > 0 {
		t.Errorf("%d of %d tries printed the secret", n, (len(tries)+every-1)/every)
	}
}

// resumeWith is a printed command that resumes a call. Its token is a secret, as the help of resume says.
var resumeWith = regexp.MustCompile(`holdfast resume hf1\.\S+`)

// found returns the form of a secret that is in one of the texts.
func found(secret string, texts ...string) string {
	plain, err := url.PathUnescape(secret)
	if err != nil {
		plain = secret
	}
	forms := []string{secret, plain, url.QueryEscape(plain), url.PathEscape(plain), strings.ToUpper(secret),
		base64.StdEncoding.EncodeToString([]byte("user:" + plain)), base64.StdEncoding.EncodeToString([]byte("user:" + secret)),
		base64.StdEncoding.EncodeToString([]byte(plain + ":"))}
	forms = append(forms, strings.FieldsFunc(plain, func(r rune) bool { return strings.ContainsRune("/ %", r) })[0]) // a part that a parser may cut out
	for _, text := range texts {
		for _, form := range forms {
			if strings.Contains(text, form) || strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
				return form
			}
		}
	}
	return ""
}

// runTry runs the program until it ends, or until it has printed something, as it
// may try for long. It returns its output, and the names of the files that it made.
func runTry(t *testing.T, args []string, env, stdin string) (said, names string) {
	t.Helper()
	home := t.TempDir()
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	cmd := exec.CommandContext(ctx, "holdfast", args...)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state"), "GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	if env != "" {
		cmd.Env = append(cmd.Env, env)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Error(err)
		return "", ""
	}
	_, _ = io.WriteString(in, stdin)
	if stdin == "" {
		_ = in.Close()
	}
	out := &sayings{first: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return "", ""
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(testlong.Either(3*time.Second, soon)): // some tries last 25 s before the first output
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = in.Close()
		<-ended
	case <-out.first:
		select {
		case <-ended:
		case <-time.After(300 * time.Millisecond): // more output may follow
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = in.Close()
			<-ended
		}
	}
	var files bytes.Buffer
	_ = filepath.WalkDir(home, func(path string, _ fs.DirEntry, _ error) error {
		fmt.Fprintln(&files, strings.TrimPrefix(path, home))
		return nil
	})
	return out.String(), files.String()
}

// sayings is the output of a program.
type sayings struct {
	mcptest.Log
	once  sync.Once
	first chan struct{} // closed at the first output
}

func (s *sayings) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.first) })
	return s.Log.Write(p)
}

// tokenFor returns a token that leads to a call at a URL.
func tokenFor(t *testing.T, to string) string {
	t.Helper()
	data, err := json.Marshal(client.State{URL: to, Calls: []client.CallState{{ID: json.RawMessage("1"), Token: "t"}}})
	if err != nil {
		t.Error(err)
	}
	return "hf1." + base64.RawURLEncoding.EncodeToString(data)
}

// repeater returns the address of a server that repeats the request in its errors, as many servers do.
func repeater(t *testing.T) string {
	t.Helper()
	return strings.TrimPrefix(mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		about := fmt.Sprintf("%s %s:%s %s", r.RequestURI, user, password, r.Header.Get("Authorization"))
		switch r.URL.Path {
		case "/401":
			http.Error(w, about, http.StatusUnauthorized)
		case "/500":
			http.Error(w, about, http.StatusInternalServerError)
		case "/elsewhere":
			http.Redirect(w, r, "http://"+user+":"+url.QueryEscape(password)+"@elsewhere.invalid/%zz?"+r.URL.RawQuery, http.StatusTemporaryRedirect)
		case "/rpc":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": nil, "error": map[string]any{"code": -32600, "message": about}})
		default:
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				fmt.Fprintf(c, "HTTP/1.1 nonsense %s\r\n\r\n", about)
				_ = c.Close()
			}
		}
	})), "http://")
}

// demoAt starts the demo, and returns the URL of its host and port.
func demoAt(t *testing.T) string {
	t.Helper()
	m := mcptest.Start(t, exec.Command("holdfast", "serve", "--demo", "--admin=", "--listen", "127.0.0.1:0")).Find(servingAt)
	if m == nil {
		t.Fatal("the server does not say where it is")
	}
	return "http://" + m[1]
}
