package holdfast_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/tools"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
	"holdfast/metrics"
)

var (
	rulesFile = filepath.Join("deploy", "prometheus", "holdfast.rules.yml")
	rulesTest = filepath.Join("deploy", "prometheus", "holdfast.rules.test.yml")
	dashboard = filepath.Join("deploy", "grafana", "holdfast.json")

	figure   = regexp.MustCompile(`\bholdfast_[a-z_]+`)
	ofDesc   = regexp.MustCompile(`fqName: "([^"]+)".*(?:variableLabels: \{([^}]*)\})`)
	suffixes = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// A registry records the names and labels of the figures that are registered.
type registry struct {
	*prometheus.Registry
	names map[string]string // the labels of each figure
}

func (r *registry) Register(c prometheus.Collector) error {
	all := make(chan *prometheus.Desc, 100)
	c.Describe(all)
	close(all)
	for d := range all {
		m := ofDesc.FindStringSubmatch(d.String())
		if m == nil {
			return fmt.Errorf("%v has no name", d)
		}
		r.names[m[1]] = m[2]
	}
	return r.Registry.Register(c)
}

// figures returns the names of a handler's figures, and the text of /metrics.
func figures(t *testing.T) (names map[string]string, text []byte) {
	t.Helper()
	all := &registry{Registry: prometheus.NewRegistry(), names: make(map[string]string)}
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(tools.Answer)), &holdfast.Options{Metrics: metrics.New(all)})
	server := httptest.NewServer(h)
	defer server.Close()
	mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, server.URL, ""))(t) // the request is refused
	w := httptest.NewRecorder()
	promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := all.Gather(); len(left) > 0 || err != nil {
		t.Errorf("%d figures are left after Shutdown, %v", len(left), err)
	}
	return all.names, w.Body.Bytes()
}

// /metrics has no figures of a tool that was not called, and no outcome that a tool's calls never had. The rules and
// the dashboard need some figures at zero, to see that they grow: these have no label for the tool.
func TestFiguresOfManyTools(t *testing.T) {
	t.Parallel()
	const listed, called = 500, 40
	all := prometheus.NewRegistry()
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
		switch {
		case x.Kind == jsonrpc.Request && x.Method == "tools/list":
			list := make([]string, listed)
			for i := range list {
				list[i] = fmt.Sprintf(`{"name":"tool_%03d","inputSchema":{"type":"object"}}`, i)
			}
			x.Result([]byte(`{"tools":[` + strings.Join(list, ",") + `]}`))
		case x.Kind == jsonrpc.Request && x.Method == "tools/call":
			x.Result([]byte(`{"content":[]}`))
		default:
			tools.Answer(x)
		}
	})), &holdfast.Options{Metrics: metrics.New(all), Logger: slog.New(slog.DiscardHandler)})
	m := &measured{Handler: h}
	m.begin()
	scrape := func() string {
		w := httptest.NewRecorder()
		promhttp.HandlerFor(all, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	ofTools := func(text string) (names map[string]int) {
		names = make(map[string]int)
		for line := range strings.Lines(text) {
			if m := figure.FindString(line); strings.Contains(line, `tool="tool_`) {
				names[m]++
				if strings.HasPrefix(m, "holdfast_calls_") && strings.HasSuffix(line, " 0\n") {
					t.Errorf("a zero is written out: %s", line)
				}
			}
		}
		return names
	}
	before := scrape()
	if names := ofTools(before); len(names) > 0 {
		t.Errorf("of tools that were only listed: %v", names)
	}
	if zero := `holdfast_call_outcomes_total{outcome="outcome_unknown",server=""} 0`; !strings.Contains(before, zero) {
		t.Errorf("there is no %s", zero)
	}
	for i := range called {
		m.post(toolCall(2+i, fmt.Sprintf("tool_%03d", i)))(&sink{head: map[string][]string{}})
	}
	after := scrape()
	names := ofTools(after)
	if names["holdfast_calls_total"] != called || names["holdfast_call_duration_seconds_count"] != called || len(names) != 4 {
		t.Errorf("of %d tools that were called: %v", called, names)
	}
	if each := (len(after) - len(before)) / called; each > 2000 {
		t.Errorf("a tool that was called takes %d bytes", each)
	}
	t.Logf("%d bytes with %d tools of which none was called, %d with %d that were", len(before), listed, len(after), called)
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// queries returns the queries of the dashboard.
func queries(t *testing.T) (all []string) {
	t.Helper()
	data := mcptest.Must(os.ReadFile(dashboard))(t)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	mcptest.Check(t, json.Unmarshal(data, &d))
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"))
		}
	}
	if len(all) < 30 {
		t.Fatalf("only %d queries are found", len(all))
	}
	return all
}

// The dashboard, the rules and the guide for operators name only figures that are counted. The
// dashboard and the guide name all of them.
func TestFiguresOfDeploy(t *testing.T) {
	t.Parallel()
	names, _ := figures(t)
	if len(names) < 20 {
		t.Fatalf("only %d figures: %v", len(names), names)
	}
	read := func(file string) string {
		data := mcptest.Must(os.ReadFile(file))(t)
		return string(data)
	}
	for file, whole := range map[string]bool{dashboard: true, rulesFile: false, rulesTest: false, filepath.Join("docs", "observing.md"): true} {
		text, named := read(file), make(map[string]bool)
		for _, name := range figure.FindAllString(text, -1) {
			if _, ok := names[name]; !ok {
				name = suffixes.ReplaceAllString(name, "")
			}
			named[name] = true
			if _, ok := names[name]; !ok {
				t.Errorf("%s names %s, which nobody counts", file, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if whole && !named[name] {
				t.Errorf("%s does not have %s", file, name)
			}
		}
	}
	label := regexp.MustCompile(`(holdfast_[a-z_]+)\{([^}]*)\}`)
	for _, text := range append(queries(t), read(rulesFile)) {
		for _, m := range label.FindAllStringSubmatch(text, -1) {
			known := names[suffixes.ReplaceAllString(m[1], "")] + "," + names[m[1]] + ",instance,le"
			for _, one := range strings.Split(m[2], ",") {
				name, _, _ := strings.Cut(one, "=")
				name = strings.TrimRight(strings.TrimSpace(name), "!~")
				if !slices.Contains(strings.Split(known, ","), name) {
					t.Errorf("%s has no label %q, in %s", m[1], name, m[0])
				}
			}
		}
	}
}

// Prometheus' own tool accepts the rules, their tests, the queries of the dashboard and /metrics.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian: prometheus)")
	}
	var rules strings.Builder
	rules.WriteString("groups: [{name: dashboard, rules: [\n")
	for i, q := range queries(t) {
		fmt.Fprintf(&rules, "  {record: 'panel:%d', expr: %q},\n", i, q)
	}
	rules.WriteString("]}]\n")
	panels := filepath.Join(t.TempDir(), "panels.yml")
	mcptest.Check(t, os.WriteFile(panels, []byte(rules.String()), 0o600))
	_, text := figures(t)
	for _, args := range [][]string{
		{"check", "rules", rulesFile}, {"test", "rules", rulesTest}, {"check", "rules", panels}, {"check", "metrics"},
	} {
		cmd := exec.Command(promtool, args...)
		cmd.Stdin = bytes.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}
