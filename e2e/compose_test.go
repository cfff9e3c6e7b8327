package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A composition has the members of compose.yaml that the tests read.
type composition struct {
	Services map[string]struct {
		Command     []string
		Environment map[string]string
		Grace       string `yaml:"stop_grace_period"`
		Volumes     []string
		Ports       []string
	}
}

// A manifest has the members of a Kubernetes manifest that the tests read.
type manifest struct {
	Kind string
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Grace      int `yaml:"terminationGracePeriodSeconds"`
				Containers []struct {
					Args  []string
					Env   []struct{ Name string }
					Ports []struct{ Name string }
				}
			}
		}
	}
}

// ofVariable finds ${NAME:-DEFAULT}.
var ofVariable = regexp.MustCompile(`\$\{\w+:-([^}]*)\}`)

func defaults(s string) string { return ofVariable.ReplaceAllString(s, "$1") }

func fromRoot(t *testing.T, file ...string) []byte {
	t.Helper()
	return mcptest.Must(os.ReadFile(filepath.Join(append([]string{".."}, file...)...)))(t)
}

func readCompose(t *testing.T) (c composition) {
	t.Helper()
	mcptest.Check(t, yaml.Unmarshal(fromRoot(t, "compose.yaml"), &c))
	return c
}

// checkFlags checks a command line of serve: its flags exist, each variable HOLDFAST_* stands for
// a flag, and the time between SIGTERM and SIGKILL is at least 10 s longer than --drain.
func checkFlags(t *testing.T, where string, args, env []string, grace time.Duration) {
	t.Helper()
	said := mcptest.Must(exec.Command(built, "serve", "--help").Output())(t)
	help := string(said)
	known := func(name string) bool { return regexp.MustCompile(`(?m)^ +--` + name + ` `).MatchString(help) }
	if len(args) == 0 || args[0] != "serve" {
		t.Fatalf("%s does not serve: %q", where, args)
	}
	drain := 30 * time.Second
	for i, a := range args {
		name, is := strings.CutPrefix(a, "--")
		name, value, joined := strings.Cut(name, "=")
		if is && !known(name) {
			t.Errorf("%s: there is no flag --%s", where, name)
		}
		if name == "drain" && is {
			if !joined {
				value = args[i+1]
			}
			var err error
			if drain, err = time.ParseDuration(value); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	for _, e := range env {
		name, is := strings.CutPrefix(e, "HOLDFAST_")
		if is && !known(strings.ToLower(strings.ReplaceAll(name, "_", "-"))) {
			t.Errorf("%s: %s sets no flag", where, e)
		}
	}
	if grace < drain+10*time.Second {
		t.Errorf("%s: it is ended after %v, and may drain for %v", where, grace, drain)
	}
}

// All flags in the shipped files that start Holdfast exist.
func TestShippedFlags(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	nodes := 0
	for name, s := range readCompose(t).Services {
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); strings.HasPrefix(from, "./") {
				if _, err := os.Stat(filepath.Join("..", from)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s is open to other machines: %s", name, p)
			}
		}
		if !strings.HasPrefix(name, "node") {
			continue
		}
		nodes++
		grace, err := time.ParseDuration(s.Grace)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var env []string
		for e := range s.Environment {
			env = append(env, e)
		}
		checkFlags(t, "compose.yaml", s.Command, env, grace)
		if !strings.Contains(string(fromRoot(t, "deploy", "prometheus", "prometheus.yml")), name+":9090") {
			t.Errorf("Prometheus does not ask %s", name)
		}
	}
	if nodes != 3 {
		t.Errorf("compose.yaml has %d nodes", nodes)
	}

	unit := string(fromRoot(t, "deploy", "systemd", "holdfast.service"))
	start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/holdfast (.*)$`).FindStringSubmatch(unit)
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(unit)
	if start == nil || stop == nil {
		t.Fatal("the unit does not say how it starts and stops")
	}
	grace := mcptest.Must(time.ParseDuration(stop[1] + "s"))(t)
	checkFlags(t, "holdfast.service", strings.Fields(start[1]), nil, grace)
}

// TestCompose runs the services of compose.yaml without containers: a NATS server and three nodes
// with its arguments. The node of a call is killed, and the call is resumed at another node.
func TestCompose(t *testing.T) {
	testlong.Only(t, "it starts a store and three nodes, which drain at its end")
	c := readCompose(t)
	var args []string
	for _, a := range c.Services["nats"].Command {
		if strings.HasSuffix(a, "/holdfast.conf") {
			a = filepath.Join("..", "deploy", "nats", "holdfast.conf")
		}
		args = append(args, defaults(a))
	}
	fs := flag.NewFlagSet("nats-server", flag.ContinueOnError)
	o := mcptest.Must(natsserver.ConfigureOptions(fs, args, func() {}, func() {}, func() {}))(t)
	o.Host, o.Port, o.StoreDir, o.NoLog, o.NoSigs = "127.0.0.1", -1, t.TempDir(), true, true
	nats := mcptest.Must(natsserver.NewServer(o))(t)
	nats.Start()
	t.Cleanup(func() { nats.Shutdown(); nats.WaitForShutdown() })
	if !nats.ReadyForConnections(time.Minute) {
		t.Fatal("the NATS server does not start")
	}

	var nodes []*program
	for _, name := range []string{"node1", "node2", "node3"} {
		s := c.Services[name]
		for k, v := range s.Environment {
			t.Setenv(k, strings.Replace(defaults(v), "nats:4222", nats.Addr().String(), 1))
		}
		args := slices.Clone(s.Command[1:])
		for i, a := range args {
			if a == ":8080" || a == ":9090" {
				args[i] = "127.0.0.1:0"
			}
		}
		nodes = append(nodes, serve(t, args...))
	}
	peer := connect(t, nodes[0])
	call := peer.count(20, 200*time.Millisecond)
	call.until(3)
	nodes[0].signal(t, syscall.SIGKILL)
	_ = nodes[0].wait(t, time.Minute)
	peer.URL = nodes[1].URL
	rest := peer.listen("GET", call.LastID, "").rest()
	if n := len(rest.received); n == 0 || !strings.HasPrefix(rest.received[n-1], "result ") {
		t.Errorf("node 2 answers %q", rest.received)
	}
	peer.URL = nodes[2].URL
	if r := peer.Post(t, mcptest.Request(9, "tools/list", "")); r.Status != http.StatusOK || !strings.Contains(r.Body, `"count"`) {
		t.Errorf("node 3 answers %d: %s", r.Status, r.Body)
	}
}

// The shipped files for Grafana are where Grafana looks for them.
func TestShippedGrafana(t *testing.T) {
	t.Parallel()
	var sources struct {
		Datasources []struct{ Type, URL string }
	}
	mcptest.Check(t, yaml.Unmarshal(fromRoot(t, "deploy", "grafana", "provisioning", "datasources", "prometheus.yml"), &sources))
	if len(sources.Datasources) != 1 || sources.Datasources[0].Type != "prometheus" || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("the source is %+v", sources)
	}
	if !json.Valid(fromRoot(t, "deploy", "grafana", "holdfast.json")) {
		t.Error("the dashboard is not JSON")
	}
	var providers struct {
		Providers []struct{ Options struct{ Path string } }
	}
	mcptest.Check(t, yaml.Unmarshal(fromRoot(t, "deploy", "grafana", "provisioning", "dashboards", "holdfast.yml"), &providers))
	to := providers.Providers[0].Options.Path + "/holdfast.json:ro"
	if mounts := readCompose(t).Services["grafana"].Volumes; !strings.HasSuffix(strings.Join(mounts, " "), to) {
		t.Errorf("the dashboard is looked for in %s, and is at %q", to, mounts)
	}
}

// TestShippedManifests checks the plain manifests.
func TestShippedManifests(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	var kinds []string
	for all := yaml.NewDecoder(bytes.NewReader(fromRoot(t, "deploy", "kubernetes", "holdfast.yaml"))); ; {
		var m manifest
		if err := all.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, m.Kind)
		if m.Kind != "Deployment" {
			continue
		}
		labels, both := maps.Clone(m.Spec.Template.Metadata.Labels), maps.Clone(m.Spec.Template.Metadata.Labels)
		if maps.Copy(both, m.Spec.Selector.MatchLabels); len(m.Spec.Selector.MatchLabels) == 0 || !maps.Equal(labels, both) {
			t.Error("the Deployment does not select its pods")
		}
		for _, c := range m.Spec.Template.Spec.Containers {
			var env []string
			for _, e := range c.Env {
				env = append(env, e.Name)
			}
			checkFlags(t, "Deployment", c.Args, env, time.Duration(m.Spec.Template.Spec.Grace)*time.Second)
		}
	}
	slices.Sort(kinds)
	if want := []string{"Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}; !slices.Equal(kinds, want) {
		t.Errorf("the manifests are %q", kinds)
	}
}

// TestShippedChart checks that the flags and variables in the chart exist.
func TestShippedChart(t *testing.T) {
	t.Parallel()
	mcptest.Check(t, build())
	helpers := string(fromRoot(t, "deploy", "helm", "templates", "_helpers.tpl"))
	args, env := []string{"serve"}, regexp.MustCompile(`HOLDFAST_[A-Z_]+`).FindAllString(helpers, -1)
	for _, m := range regexp.MustCompile(`"?(--[a-z][a-z-]+)(=|\n)`).FindAllStringSubmatch(helpers, -1) {
		if m[1] != "--drain" {
			args = append(args, m[1])
		}
	}
	if len(args) < 15 || len(env) < 3 {
		t.Errorf("the chart has only the flags %q and variables %q", args, env)
	}
	checkFlags(t, "the chart", args, env, time.Minute)
}
