package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/tailscale/hujson"
	"go.yaml.in/yaml/v3"

	"holdfast"
	"holdfast/internal/auth/authtest"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/engine/redis/redistest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// repository is the directory of README.md.
const repository = "../.."

// A block is a fenced block of a document.
type block struct {
	file, language, text string
	line                 int
}

// A special has the facts about a block that its test needs besides the text. It is for the blocks of the file that contain has.
type special struct {
	file, has string
	noAddress bool              // the block exists as long as the module has no address (deploy/module)
	why       string            // why the block does not run here; "": it runs
	long      string            // why it runs with -long only
	before    func(*stage)      // makes the files and servers that the block needs
	replace   []string          // texts, each followed by its replacement here
	wrap      string            // the whole text of which the block is a part
	says      []string          // regexps of its output
	with      map[string]string // more variables of its environment
}

// specials has no entry for most blocks. An entry that fits no block is an error.
var specials = []special{
	// These need a program that a machine with only Go does not have, or have effects outside of the test.
	{file: "docs/deploy.md", has: "docker compose", why: "it needs Docker: TestCompose runs what compose.yaml says, as processes"},
	{file: "docs/deploy.md", has: "ko build", why: "it pushes to a registry"},
	{file: "docs/deploy.md", has: "helm install", why: "it needs a cluster: .ci/run manifests renders the chart in all its combinations"},
	{file: "docs/deploy.md", has: "kubectl", why: "it needs a cluster: .ci/run manifests checks the files against the API"},
	{file: "docs/deploy.md", has: "systemctl", why: "it changes the system; TestNotify has what the unit counts on"},
	{file: "docs/deploy.md", has: "goreleaser", why: "it builds a release for all platforms"},
	{file: "docs/deploy.md", has: "./deploy/module", why: "it rewrites the repository: deploy/module tests it on a copy"},
	{file: "docs/install.md", has: "goreleaser", why: "it builds a release for all platforms; deploy/pack tests what is made of one"},
	{file: "docs/login.md", has: "holdfast login", why: "it needs a browser: TestLoginCommands in e2e has one"},
	{file: "docs/login.md", has: "--login credentials", why: "it needs an authorization server: TestLogin in e2e has one"},
	{file: "docs/command-line.md", has: "$ holdfast", why: "another test of this package compares it with what is printed"},
	{file: "docs/torture.md", has: "$ holdfast torture", why: "these are figures of runs of a minute"},
	{file: "docs/proxies.md", has: "upstream holdfast", why: "TestProxies in e2e runs it"},
	{file: "docs/proxies.md", has: "reverse_proxy 127.0.0.1", why: "TestProxies in e2e runs it"},
	{file: "docs/proxies.md", has: "health_uri", long: "it needs Caddy"},

	{file: "README.md", has: "Last-Event-ID", replace: []string{"post -m 2", "post -m 1", `"delay_ms":700`, `"delay_ms":350`}, says: []string{`id: \S+`, `"progress":5`, `counted to 5`}},
	{file: "README.md", has: "holdfast serve --store redis://", long: "it needs Redis", before: (*stage).stores, with: map[string]string{"PRINTED_WARNS": "cannot reach the store, trying again"}},
	{file: "README.md", has: "go mod edit", noAddress: true, long: "it compiles a program", before: (*stage).changedProgram},
	{file: "docs/go-sdk.md", has: "go mod init", noAddress: true, long: "it compiles a program", before: (*stage).printedProgram},
	{file: "README.md", has: "holdfast resume", before: (*stage).unfinished, says: []string{`counted to 8`}},
	{file: "README.md", has: "holdfast call", replace: []string{"delay_ms=500", "delay_ms=50"}, says: []string{"counted to 20"}},
	{file: "docs/running.md", has: "redis://", long: "it needs Redis", before: (*stage).stores},
	{file: "docs/observing.md", has: "OTEL_EXPORTER", replace: []string{"collector:4318", "127.0.0.1:3000"}},
	{file: "docs/servers.md", has: "holdfast torture", long: "it takes seconds", with: map[string]string{"PRINTED_TORTURE": "--calls 1 --seed 890054871"}},
	{file: "docs/torture.md", has: "holdfast torture", long: "it takes seconds", replace: []string{"--calls 50 --seed 7", "--calls 1"}, with: map[string]string{"PRINTED_TORTURE": "--calls 1 --seed 890054871"}},
	{file: "docs/config.md", has: "SEARCH_TOKEN", with: map[string]string{"SEARCH_TOKEN": "s3cret"}},
	{file: "docs/desktop.md", has: "holdfast login", why: "it needs a browser: TestLoginCommands in e2e has one"},
	{file: "docs/desktop.md", has: "uninstall", before: (*stage).installed},
	{file: "docs/auth.md", has: "holdfast key", says: []string{`hf_`}},
	{file: "docs/auth.md", has: "--tls-client-ca", before: (*stage).certificates},
	{file: "docs/auth.md", has: `"files": { "auth"`, wrap: `{"mcpServers": {"files": {"command": "COMMAND"}, "search": {"url": "https://example.com/mcp"}}, %s}`, with: map[string]string{"SEARCH_SECRET": "s3cret"}},
	{file: "docs/handoff.md", has: `"hosts"`, wrap: `{"mcpServers": {"files": {"command": "COMMAND"}}, %s}`},
}

// printedDocuments returns README.md and docs/*.md, by their paths from the root of the repository.
func printedDocuments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(files) < 10 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	all := make(map[string]string)
	for _, name := range append(files, filepath.Join(repository, "README.md")) {
		text := mcptest.Must(os.ReadFile(name))(t)
		file := mcptest.Must(filepath.Rel(repository, name))(t)
		all[filepath.ToSlash(file)] = string(text)
	}
	return all
}

// printedBlocks returns the blocks of README.md and docs/*.md.
func printedBlocks(t *testing.T) (all []block) {
	t.Helper()
	documents := printedDocuments(t)
	for _, file := range slices.Sorted(maps.Keys(documents)) {
		blocks, err := blocksOf(file, documents[file])
		if err != nil {
			t.Error(err)
		}
		all = append(all, blocks...)
	}
	return all
}

// blocksOf returns the fenced blocks of a document. A block that is only indented is an error, as it has no language.
func blocksOf(file, text string) (all []block, err error) {
	var b *block
	fence, indent, blank := "", 0, true
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimLeft(line, " ")
		switch {
		case b == nil && strings.HasPrefix(bare, "```"):
			language := strings.TrimLeft(bare, "`")
			fence, indent = bare[:len(bare)-len(language)], len(line)-len(bare)
			if language == "" {
				err = errors.Join(err, fmt.Errorf("%s:%d: the block has no language: sh, console, go, json, … or text", file, i+1))
			}
			b = &block{file: file, line: i + 1, language: language}
		case b != nil && bare == fence:
			all, b = append(all, *b), nil
		case b != nil:
			b.text += strings.TrimPrefix(line, strings.Repeat(" ", min(indent, len(line)-len(bare)))) + "\n"
		case blank && strings.HasPrefix(line, "    ") && !strings.HasPrefix(bare, "- "):
			err = errors.Join(err, fmt.Errorf("%s:%d: an indented block: write it as a fenced one, with its language", file, i+1))
		}
		blank = bare == ""
	}
	if b != nil {
		err = errors.Join(err, fmt.Errorf("%s:%d: the block has no end", file, b.line))
	}
	return all, err
}

// TestPrinted tries the blocks of README.md and docs/*.md: it runs commands, in an empty directory, and lets the
// program or a parser read configurations. Addresses are replaced here, and so are the programs that stand for a
// reader's own server. The specials list the blocks that do not run, with the reasons.
func TestPrinted(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no sh")
	}
	w := newWorld(t)
	used := make([]bool, len(specials))
	for _, b := range printedBlocks(t) {
		var s special
		for i := range specials {
			if specials[i].file == b.file && strings.Contains(b.text, specials[i].has) {
				s, used[i] = specials[i], true
				break
			}
		}
		if s.why != "" {
			continue
		}
		t.Run(fmt.Sprintf("%s:%d", b.file, b.line), func(t *testing.T) {
			t.Parallel()
			if s.long != "" {
				testlong.Only(t, s.long)
			}
			do := languages[b.language]
			if do == nil {
				t.Fatalf("there is no way to try a block in %q: add one to languages, or call it text", b.language)
			}
			text := b.text
			if s.wrap != "" {
				text = fmt.Sprintf(s.wrap, text)
			}
			do(w.stage(t, &s), text)
		})
	}
	tests := testNames(t)
	for i, s := range specials {
		lib := mcptest.Must(w.library())(t)
		published := strings.Contains(lib.module, ".")
		if !used[i] && (!s.noAddress || !published) {
			t.Errorf("no block of %s has %q", s.file, s.has)
		}
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(s.why, -1) {
			if !tests[name] {
				t.Errorf("%s, %q: there is no %s", s.file, s.has, name)
			}
		}
	}
}

// testNames returns the names of the tests that specials may name.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(repository, "*", "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests, %v", len(files), err)
	}
	names := make(map[string]bool)
	for _, file := range files {
		text := mcptest.Must(os.ReadFile(file))(t)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
	}
	return names
}

// languages has the way to try a block, by its language.
var languages = map[string]func(s *stage, text string){
	"text":       func(*stage, string) {},
	"http":       func(*stage, string) {},
	"sh":         (*stage).sh,
	"console":    (*stage).console,
	"go":         (*stage).goes,
	"diff":       (*stage).diff,
	"json":       (*stage).json,
	"jsonc":      (*stage).json,
	"yaml":       (*stage).yaml,
	"toml":       (*stage).toml,
	"nats":       (*stage).nats,
	"redis":      (*stage).redis,
	"caddy":      (*stage).caddy,
	"dockerfile": (*stage).dockerfile,
	"python":     (*stage).python,
	"js":         (*stage).js,
}

// A world has the parts that all blocks share: servers at the addresses in the documents.
type world struct {
	t         *testing.T
	demo      string    // the address of the demo server, HOST:PORT
	proxy     string    // the URL of a proxy that serves https://….example.com on this machine
	authority string    // a file with the certificate of that server
	programs  string    // a directory with the programs that documents run
	cache     [2]string // GOCACHE, GOMODCACHE
	library   func() (*library, error)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := printedServer()
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, nil)
	mcptest.ShutDownAtEnd(t, handler, soon)
	demo := mcptest.Serve(t, handler)
	to := mcptest.Must(url.Parse(demo))(t)
	w := &world{t: t, demo: to.Host, programs: t.TempDir(), library: sync.OnceValues(readLibrary)}
	self := mcptest.Must(os.Executable())(t)
	caches := mcptest.Must(exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output())(t)
	copy(w.cache[:], strings.Fields(string(caches)))
	program := mcptest.Must(exec.LookPath("holdfast"))(t)
	far := httptest.NewTLSServer(examples(to)) // its certificate is for example.com, too
	t.Cleanup(far.Close)
	w.authority = filepath.Join(t.TempDir(), "example.com.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: far.Certificate().Raw})
	mcptest.Check(t, os.WriteFile(w.authority, certificate, 0o600))
	w.proxy = mcptest.Serve(t, tunnel(far.Listener.Addr().String()))
	for name, does := range map[string]string{
		"holdfast": `holdfast PROGRAM "$@"`,
		"npx":      `package PROGRAM "$@"`, "uvx": `package PROGRAM "$@"`,
		"COMMAND": "stdio", "node": "stdio", "python": "stdio", "your-mcp-server": "stdio", "mcp-server-everything": "stdio",
	} {
		script := fmt.Sprintf("#!/bin/sh\nexec %q printed %s\n", self, strings.ReplaceAll(does, "PROGRAM", strconv.Quote(program)))
		if name == "holdfast" { // other commands need no help of printedHoldfast
			script = strings.Replace(script, "exec", fmt.Sprintf("case \"$1\" in serve | torture | resume) ;; *) exec %q \"$@\" ;; esac\nexec", program), 1)
		}
		mcptest.Check(t, os.WriteFile(filepath.Join(w.programs, name), []byte(script), 0o700))
	}
	return w
}

// examples returns the servers of https://….example.com: an authorization server, and the demo.
func examples(demo *url.URL) http.Handler {
	mux := http.NewServeMux()
	const issuer = "https://auth.example.com"
	mux.HandleFunc("auth.example.com/.well-known/oauth-authorization-server", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": issuer, "jwks_uri": issuer + "/keys", "token_endpoint": issuer + "/token", "introspection_endpoint": issuer + "/introspect",
			"authorization_endpoint": issuer + "/authorize", "response_types_supported": []string{"code"},
		})
	})
	mux.HandleFunc("auth.example.com/keys", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"1","use":"sig","alg":"EdDSA","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`)
	})
	mux.Handle("/", mcptest.Early(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(demo) }}))
	return mux
}

// tunnel is a proxy that connects every request to the address to.
func tunnel(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		server, err := net.Dial("tcp", to)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer server.Close()
		client, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer client.Close()
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(server, client)
			_ = server.Close()
		}()
		_, _ = io.Copy(client, server)
	}
}

// A stage is the place where one block runs.
type stage struct {
	*testing.T
	*special
	world    *world
	dir      string // the working directory; HOME is in it
	after    string // a command that runs after those of the block
	replaced []string
}

func (w *world) stage(t *testing.T, s *special) *stage {
	at := &stage{T: t, special: s, world: w, dir: t.TempDir()}
	for _, dir := range []string{"home/.cursor", "home/.config/Claude", "tmp", "var"} {
		mcptest.Check(t, os.MkdirAll(filepath.Join(at.dir, dir), 0o700))
	}
	at.write("claude_desktop_config.json", `{"mcpServers": {"everything": {"command": "COMMAND"}}}`)
	at.replaced = append(slices.Clone(s.replace),
		"127.0.0.1:8080", w.demo, "127.0.0.1:3000", w.demo, "--listen :8080", "--listen 127.0.0.1:0", "--admin :9090", "--admin 127.0.0.1:0",
		"/var/lib/holdfast", filepath.Join(at.dir, "var", "holdfast"), "go run ./cmd/holdfast", "holdfast")
	if s.before != nil {
		s.before(at)
	}
	return at
}

func (s *stage) write(name, text string) string {
	s.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	return file
}

// env returns the environment of a block.
func (s *stage) env() []string {
	env := []string{
		"PATH=" + s.world.programs + string(filepath.ListSeparator) + os.Getenv("PATH"),
		"HOME=" + filepath.Join(s.dir, "home"), "TMPDIR=" + filepath.Join(s.dir, "tmp"),
		"GOCACHE=" + s.world.cache[0], "GOMODCACHE=" + s.world.cache[1], "GOPROXY=off", "GOSUMDB=off", "GOFLAGS=-mod=mod",
		"HOLDFAST_LISTEN=127.0.0.1:0", "HOLDFAST_ADMIN=127.0.0.1:0", "HTTPS_PROXY=" + s.world.proxy, "SSL_CERT_FILE=" + s.world.authority,
	}
	for name, value := range s.with {
		env = append(env, name+"="+value)
	}
	return env
}

// run runs a program in the directory of the block, and returns its output.
func (s *stage) run(name string, args ...string) (string, error) {
	s.Helper()
	ctx, stop := context.WithTimeout(s.Context(), 2*soon)
	defer stop()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = s.dir, s.env()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = soon
	err := cmd.Run()
	return out.String(), err
}

// sh runs commands one after the other. "holdfast serve" ends when it has answered a client (see printedMain).
func (s *stage) sh(text string) {
	s.Helper()
	out, err := s.run("sh", "-eux", s.write("commands", strings.NewReplacer(s.replaced...).Replace(text)+"\n"+s.after))
	for _, want := range s.says {
		if !regexp.MustCompile(want).MatchString(out) {
			err = errors.Join(err, fmt.Errorf("it does not print %s", want))
		}
	}
	if err != nil {
		s.Errorf("%v\n%s", err, out)
	}
}

// console runs the lines after "$ ".
func (s *stage) console(text string) {
	s.Helper()
	commands := ""
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			commands += command
		}
	}
	s.sh(commands)
}

// json gives a host's file to holdfast check, and lets a parser read any other text: one value, or one on each line.
func (s *stage) json(text string) {
	s.Helper()
	value, err := hujson.Standardize([]byte(text))
	if err != nil {
		for line := range strings.Lines(text) {
			if !json.Valid([]byte(line)) {
				s.Fatalf("%v, and this line is no JSON: %s", err, line)
			}
		}
		return
	}
	var top map[string]json.RawMessage
	if json.Unmarshal(value, &top) != nil {
		return
	}
	for _, member := range []string{"mcpServers", "servers", "context_servers", "holdfast"} {
		if top[member] != nil {
			if out, err := s.run("holdfast", "check", "--strict", s.write("servers.json", text)); err != nil {
				s.Errorf("holdfast check: %v\n%s", err, out)
			}
			return
		}
	}
}

// yaml checks values of the chart against its schema.
func (s *stage) yaml(text string) {
	s.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		s.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(repository, "deploy", "helm", "values.schema.json"))
	if err != nil {
		s.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(data, &schema); err != nil {
		s.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		s.Fatal(err)
	}
	if err := resolved.Validate(value); err != nil {
		s.Error(err)
	}
}

func (s *stage) toml(text string) {
	s.Helper()
	var value map[string]any
	if err := toml.Unmarshal([]byte(text), &value); err != nil {
		s.Error(err)
	}
}

// nats lets a NATS server read its configuration. A configuration without a port has the permissions of a user.
func (s *stage) nats(text string) {
	s.Helper()
	text = strings.NewReplacer("$PASSWORD", "secret", "$ADMIN", "secret", "/var/lib/nats", s.dir).Replace(text)
	if !strings.Contains(text, "listen:") {
		text = "accounts { A { users: [{user: a, password: b, permissions: {" + text + "}}] } }"
	}
	if _, err := natsserver.ProcessConfigFile(s.write("nats.conf", text)); err != nil {
		s.Error(err)
	}
}

// redis reads settings of Redis. With -long a Redis starts with them.
func (s *stage) redis(text string) {
	s.Helper()
	setting := regexp.MustCompile(`^[a-z-]+ \S+$`)
	var options []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !setting.MatchString(line) {
			s.Errorf("%q is no setting", line)
		}
		name, value, _ := strings.Cut(line, " ")
		options = append(options, "--"+name, value)
	}
	if testlong.Wanted() {
		redistest.Start(s, options...)
	}
}

// caddy lets Caddy read its configuration.
func (s *stage) caddy(text string) {
	s.Helper()
	_, err := exec.LookPath("caddy")
	testlong.Needs(s, err == nil, "caddy")
	if out, err := s.run("caddy", "adapt", "--adapter", "caddyfile", "--config", s.write("Caddyfile", text)); err != nil {
		s.Errorf("%v\n%s", err, out)
	}
}

// dockerfile runs the container's command: ENTRYPOINT and CMD.
func (s *stage) dockerfile(text string) {
	s.Helper()
	var command []string
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch name {
		case "ENTRYPOINT", "CMD":
			var words []string
			if err := json.Unmarshal([]byte(rest), &words); err != nil {
				s.Fatalf("%s: %v", line, err)
			}
			command = append(command, words...)
		case "FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "EXPOSE":
		default:
			s.Errorf("what is %s?", line)
		}
	}
	command[0] = filepath.Base(command[0])
	s.sh(strings.Join(command, " "))
}

// python lets Python compile a program, where there is a Python.
func (s *stage) python(text string) {
	s.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		s.Skip("there is no python3")
	}
	if out, err := s.run("python3", "-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())", s.write("server.txt", text)); err != nil {
		s.Errorf("%v\n%s", err, out)
	}
}

// js lets Node.js parse a program. With -long it runs the program, and a client calls its tool.
func (s *stage) js(text string) {
	s.Helper()
	node, err := exec.LookPath("node")
	packages, npm := os.LookupEnv("HOLDFAST_NPM")
	if !testlong.Wanted() && err != nil {
		s.Skip("there is no node")
	}
	file := s.write("server.mjs", text)
	if out, err := s.run(node, "--check", file); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	if !testlong.Wanted() {
		return
	}
	testlong.Needs(s, npm, "HOLDFAST_NPM, a directory with the packages of e2e/package.json")
	if err := os.Symlink(filepath.Join(packages, "node_modules"), filepath.Join(s.dir, "node_modules")); err != nil {
		s.Fatal(err)
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "reader", Version: "1"}, nil)
	session, err := client.Connect(s.Context(), &mcp.CommandTransport{Command: exec.Command(node, file)}, nil)
	if err != nil {
		s.Fatal(err)
	}
	defer session.Close()
	result, err := session.CallTool(s.Context(), &mcp.CallToolParams{Name: "greet", Arguments: map[string]any{"name": "Ada"}})
	if err != nil || result.IsError {
		s.Errorf("%v, %v", result, err)
	}
}

// sdkProgram is a server with the go-sdk's handler, which README.md changes.
const sdkProgram = `package main

import (
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	http.ListenAndServe("127.0.0.1:8080", handler)
}
`

// changedProgram writes the program that results from README.md's changes to sdkProgram. It has to compile after the commands.
func (s *stage) changedProgram() {
	program := sdkProgram
	_, section, _ := strings.Cut(s.document("README.md"), "### In a Go server\n")
	blocks, err := blocksOf("README.md", section)
	if err != nil {
		s.Fatal(err)
	}
	for _, b := range blocks[:2] {
		before, after := sides(b.text)
		if b.language != "diff" || !strings.Contains(program, before) {
			s.Fatalf("README.md does not begin with two changes to a program as\n%s", program)
		}
		program = strings.Replace(program, before, after, 1)
	}
	s.write("main.go", program)
	s.write("go.mod", "module greeter\n\ngo 1.26.0\n\nrequire github.com/modelcontextprotocol/go-sdk v1.8.0\n")
	s.beside()
	s.after = "go vet ."
}

// printedProgram writes the whole program of docs/go-sdk.md.
func (s *stage) printedProgram() {
	blocks, err := blocksOf("docs/go-sdk.md", s.document("docs/go-sdk.md"))
	if err != nil {
		s.Fatal(err)
	}
	for _, b := range blocks {
		if b.language == "go" && strings.HasPrefix(b.text, "package main\n") {
			s.write("main.go", b.text)
		}
	}
	s.beside()
	s.after = "test -x greeter"
}

// beside puts a clone of the repository where the block says. The clone is this repository, as its packages are compiled already.
func (s *stage) beside() {
	clone, err := filepath.Abs(repository)
	if err != nil {
		s.Fatal(err)
	}
	s.replaced = append(s.replaced, "../holdfast", clone)
}

func (s *stage) document(name string) string {
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		s.Fatal(err)
	}
	return string(text)
}

// unfinished makes two calls that go on at their server, one to resume and one to cancel. The first halts until the block
// resumes it (see printedHoldfast), and the second one takes minutes, so that both still run then on a slow machine, too.
func (s *stage) unfinished() {
	demo := newDemo()
	halt := filepath.Join(s.dir, printedHalt)
	mcptest.Check(s.T, os.Mkdir(halt, 0o700))
	halting(demo, there(halt))
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return demo }, nil)
	mcptest.ShutDownAtEnd(s.T, handler, soon)
	at := mcptest.Serve(s.T, handler) + "/mcp"
	delays := map[string]string{"resume": "10", "cancel": "60000"}
	for _, command := range []string{"resume", "cancel"} {
		call := exec.Command("holdfast", "call", at, "count", "--arg", "to=8", "--arg", "delay_ms="+delays[command])
		call.Dir, call.Env = s.dir, s.env()
		if err := call.Start(); err != nil {
			s.Fatal(err)
		}
		name := ""
		for begun := time.Now(); name == ""; {
			list, err := s.run("holdfast", "calls")
			if err != nil || time.Since(begun) > soon {
				s.Fatalf("holdfast calls: %v\n%s", err, list)
			}
			for _, found := range regexp.MustCompile(`count-\w+`).FindAllString(list, -1) {
				if !slices.Contains(s.replaced, found) {
					name = found
				}
			}
			if _, err := s.run("holdfast", "status", name); err != nil { // the call's token has yet to come
				name = ""
			}
		}
		_ = call.Process.Kill() // as at the end of a terminal
		_ = call.Wait()
		s.replaced = append(s.replaced, command+" count-k3f9", command+" "+name, name, name)
		if command == "resume" {
			s.replaced = append(s.replaced, "status count-k3f9", "status "+name)
		}
	}
}

// installed puts a server into the file of a host.
func (s *stage) installed() {
	s.sh("holdfast install cursor https://example.com/mcp")
}

// stores starts a Redis and a NATS server in place of the addresses in the documents.
func (s *stage) stores() {
	redis := redistest.Start(s)
	cluster, err := natstest.Start(s.TempDir(), 1)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(cluster.Close)
	s.replaced = append(s.replaced, "redis://host:6379/0", redis.URL(), "redis://redis:6379", redis.URL(), "nats://user:pass@h1,h2,h3", cluster.URL()+"?replicas=1")
}

// certificates makes cert.pem, key.pem and clients.pem.
func (s *stage) certificates() {
	ca := authtest.NewCA(s, "clients")
	cert, key := ca.Server("client")
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key, "clients.pem": ca.PEM} {
		s.write(name, string(text))
	}
}

// othersFlags are flags of other programs in the documents.
var othersFlags = map[string]string{"omit": "npm", "init": "docker", "cli": "the inspector"}

// TestPrintedFlags checks that the flags and variables in README.md and docs/*.md are flags of the program.
func TestPrintedFlags(t *testing.T) {
	t.Parallel()
	known := make(map[string]bool)
	var add func(cmd *cobra.Command)
	add = func(cmd *cobra.Command) {
		cmd.InheritedFlags() // adds the flags of its parents
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
		for _, sub := range cmd.Commands() {
			add(sub)
		}
	}
	add(newRoot())
	delete(known, "help")
	var sources strings.Builder
	for _, pattern := range []string{"*.go", "../../e2e/*.go", "../../internal/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text := mcptest.Must(os.ReadFile(file))(t)
			sources.Write(text)
		}
	}
	mentioned := 0
	for file, text := range printedDocuments(t) {
		for _, m := range regexp.MustCompile("`--([a-z][a-z-]*)").FindAllStringSubmatch(text, -1) {
			if mentioned++; !known[m[1]] && othersFlags[m[1]] == "" {
				t.Errorf("%s: there is no flag --%s", file, m[1])
			}
		}
		for _, name := range regexp.MustCompile(`\bHOLDFAST_[A-Z_]*[A-Z]\b`).FindAllString(text, -1) {
			flag := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "HOLDFAST_")), "_", "-")
			if !known[flag] && !strings.Contains(sources.String(), `"`+name) && name != "HOLDFAST_INPUT_ID" {
				t.Errorf("%s: there is no variable %s", file, name)
			}
		}
	}
	if mentioned < 200 {
		t.Errorf("only %d flags are mentioned", mentioned)
	}
}
