package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"holdfast/internal/feature/hosts"
	"holdfast/internal/redact"
)

// Read reads a file. The error joins an [Error] for each mistake, in the order of the file.
func Read(file string, opts Options) (*File, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(file, data, opts)
}

// Parse is [Read] for the content of a file.
func Parse(file string, data []byte, opts Options) (*File, error) {
	opts.Workspace = cmp.Or(opts.Workspace, workspaceOf(file))
	where := "" // where servers run; "": the folder is not there, and a name only
	if is, err := os.Stat(opts.Workspace); err == nil && is.IsDir() {
		if abs, err := filepath.Abs(opts.Workspace); err == nil {
			opts.Workspace, where = abs, abs
		}
	}
	if opts.Env == nil {
		opts.Env = os.LookupEnv
	}
	d := &decoder{file: file, data: plainText(data)}
	if text := d.isOther(); text != "" {
		return nil, &Error{File: file, Line: 1, Column: 1, Text: text}
	}
	var host hostFile
	d.decode(&host)
	r := &reader{expander: &expander{decoder: d, opts: opts, inputs: make(map[string]hostInput)}, host: &host, where: where}
	if r.wrong = d.ofServers(r.has); len(d.errs) == 0 {
		r.read()
	}
	if len(d.errs) > 0 || len(r.out.Servers) == 0 {
		for _, l := range r.out.LeftOut {
			d.errs = append(d.errs, l.errs...)
		}
	}
	if len(d.errs) > 0 {
		return nil, joined(d.errs)
	}
	slices.SortStableFunc(d.ignored, func(a, b Ignored) int { return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column)) })
	r.out.Ignored = d.ignored
	return &r.out, nil
}

// joined joins errors in the order of their places.
func joined(errs []error) error {
	slices.SortStableFunc(errs, func(a, b error) int {
		var x, y *Error
		errors.As(a, &x)
		errors.As(b, &y)
		return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column), cmp.Compare(x.Text, y.Text))
	})
	errs = slices.CompactFunc(errs, func(a, b error) bool { return a.Error() == b.Error() }) // of settings for many servers
	return errors.Join(errs...)
}

// reader makes a File from a host's file.
type reader struct {
	*expander
	host  *hostFile
	where string // where servers without a cwd run: the workspace folder, or ""
	out   File
	all   []*Server          // those of out, and those that are left out
	wrong map[string][]error // mistakes in single servers
}

// has reports whether the file has a server.
func (r *reader) has(name string) bool {
	for _, in := range r.sections() {
		if slices.ContainsFunc(in.servers, func(s member[hostServer]) bool { return s.Name == name }) {
			return true
		}
	}
	return false
}

// leaveOut notes that a server is not served, and why.
func (r *reader) leaveOut(name string, errs []error) {
	r.out.LeftOut = append(r.out.LeftOut, LeftOut{Name: name, Err: joined(errs), errs: errs})
}

func (r *reader) read() {
	for _, in := range slices.Concat(r.host.Inputs, r.host.MCP.Inputs) {
		if in.ID.value == "" {
			r.failf(in.Type.at, "an input has no id: add one")
		}
		r.inputs[in.ID.value] = in
	}
	r.out.Merge = r.host.Holdfast.Merge
	r.hosts()
	own := make(map[string]member[settings])
	for _, s := range r.host.Holdfast.Servers {
		own[s.Name] = s
	}
	seen := make(map[string]string) // the sections that servers are in
	for _, in := range r.sections() {
		for _, s := range in.servers {
			if first := seen[s.Name]; first != "" {
				r.failf(s.At, "the server %q is in both %s and %s: remove one", s.Name, first, in.name)
				continue
			}
			seen[s.Name] = in.name
			if errs := r.wrong[s.Name]; errs != nil {
				r.leaveOut(s.Name, errs)
				continue
			}
			r.add(s, in, own[s.Name])
		}
	}
	for name, s := range own {
		if seen[name] == "" {
			r.failf(s.At, "there is no server %q that these settings could be for: the servers are %s", name, quoted(seen))
		}
	}
	if len(seen) == 0 {
		r.failf(0, `no servers: add some to "mcpServers", as {"mcpServers": {"NAME": {"command": "…"}}}%s`, r.elsewhere())
	}
	r.checkPaths()
	r.checkPrefixes()
}

// hosts reads how long hosts wait for a call.
func (r *reader) hosts() {
	for _, h := range r.host.Holdfast.Hosts {
		switch {
		case h.Name == "":
			r.failf(h.At, `a host has no name here: name it as its clientInfo does, with * for any text`)
		case h.Value.Limit == nil:
			r.failf(h.At, `the host %q has no limit: add one, such as "limit": "60s"`, h.Name)
		default:
			r.out.Hosts = append(r.out.Hosts, hosts.Rule{Pattern: h.Name, Limit: h.Value.Limit.value, Extends: h.Value.Progress})
		}
	}
}

// quoted returns the names of a set, for a person.
func quoted[V any](set map[string]V) string {
	var all []string
	for name := range set {
		all = append(all, fmt.Sprintf("%q", name))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// add adds a server, or leaves it out if it cannot be served as the file has it.
func (r *reader) add(host member[hostServer], in section, ours member[settings]) {
	before := len(r.errs)
	s := r.server(host, in, ours)
	wrong := slices.Clone(r.errs[before:])
	r.errs = r.errs[:before]
	if s != nil {
		r.all = append(r.all, s)
		wrong = append(wrong, r.lacks...)
	}
	switch {
	case len(wrong) > 0:
		r.leaveOut(host.Name, wrong)
	case s != nil:
		r.out.Servers = append(r.out.Servers, s)
	}
}

// server reads a server. It returns nil for a server that is not served.
func (r *reader) server(host member[hostServer], in section, ours member[settings]) *Server {
	h := &host.Value
	if r.excludes(in, &host) {
		r.out.Disabled = append(r.out.Disabled, host.Name)
		return nil
	}
	if h.isElsewhere(in) {
		r.ignore(host.At, join(in.name, host.Name))
		return nil
	}
	s := &Server{Name: host.Name}
	r.begin(h, in.kind)
	s.At = r.placeOf(host.At)
	if bad := strings.IndexFunc(s.Name, unicode.IsControl); s.Name == "" || s.Name == MergedName || bad >= 0 || path.Clean("/"+s.Name) != "/"+s.Name {
		r.failf(host.At, "a server cannot have the name %q: rename it", s.Name)
		return nil
	}
	switch {
	case ours.Name != "" && h.Holdfast != nil:
		r.failf(ours.At, "the server %q has settings here, and in a member \"holdfast\" of its own: put them in one place", s.Name)
	case ours.Name != "":
		h.Holdfast = &ours.Value
	}
	all := r.hostSettings(&host, in)
	r.settings(s, h.Holdfast, &all)
	off, on := r.switched(&host, in)
	if s.Deny = append(s.Deny, off...); on != nil && s.Allow == nil {
		s.Allow = on
	}
	url := cmp.Or(h.HTTP, h.URL, h.Server) // as the Gemini CLI has it
	switch {
	case h.Command.value != "" && url.value != "":
		r.failf(host.At, "the server %q has both a command and a url: remove one", s.Name)
	case h.Command.value == "" && url.value == "":
		r.failf(host.At, "the server %q has neither a command nor a url: add one%s", s.Name, r.unknown(join(in.name, host.Name)))
	case url.value != "":
		r.remote(s, h, url)
	default:
		r.command(s, h)
	}
	r.auth(s, h.Holdfast)
	return s
}

// remote reads a server that runs elsewhere.
func (r *reader) remote(s *Server, h *hostServer, at text) {
	switch h.Type.value {
	case "", "remote":
		if s.Type = Any; at == h.HTTP {
			s.Type = HTTP
		}
	case "http", "streamable-http", "streamableHttp", "streamable_http":
		s.Type = HTTP
	case "sse":
		s.Type = SSE
	default:
		r.failf(h.Type.at, "a server with a url cannot be of type %q: want http or sse", h.Type.value)
	}
	s.URL, s.RunsAt = r.expand(at), r.placeOf(at.at)
	if s.Shown = redact.Written(at.value); !strings.HasPrefix(s.Shown, "$") && !strings.HasPrefix(s.Shown, "{") { // else a variable begins it, and is shown
		s.Shown = redact.URL(at.value)
	}
	switch u, err := url.Parse(s.URL); {
	case len(r.lacks) > 0:
	case err == nil && (u.Scheme == "unix" || u.Scheme == "pipe"):
		r.failf(at.at, "a server at a socket or a pipe (%s:) is not supported: want http://HOST/PATH or https://HOST/PATH", u.Scheme)
	case err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme):
		r.failf(at.at, "%q is no URL of a server: want http://HOST/PATH or https://HOST/PATH", redact.Written(at.value))
	}
	s.Header = make(http.Header)
	for _, v := range h.Headers {
		value := r.expand(v.Value)
		if strings.ContainsAny(value, "\r\n\x00") || strings.ContainsFunc(v.Name, func(c rune) bool { return c <= ' ' || c == ':' || c > '~' }) || v.Name == "" {
			name, _, both := strings.Cut(v.Name, ":")
			if both {
				name += ": " + redact.Mark
			}
			r.failf(v.At, "the header %q cannot be sent: its name or its value has characters that headers must not have", name)
		}
		s.Header.Set(v.Name, value)
	}
}

// command reads a server that is a command.
func (r *reader) command(s *Server, h *hostServer) {
	s.Type = Stdio
	s.RunsAt = r.placeOf(h.Command.at)
	s.DirAt = s.RunsAt
	if t := h.Type.value; t != "" && t != "stdio" && t != "local" {
		r.failf(h.Type.at, "a server with a command cannot be of type %q: want stdio", t)
	}
	s.Env = make(map[string]string)
	if h.EnvFile.value != "" {
		maps.Copy(s.Env, r.envFile(h.EnvFile))
	}
	for _, v := range r.env {
		if strings.ContainsAny(v.Name, "=\x00") || v.Name == "" {
			name, _, value := strings.Cut(v.Name, "=")
			if value {
				name += "=" + redact.Mark
			}
			r.failf(v.At, "%q cannot be the name of an environment variable: rename it", name)
		}
		s.Env[v.Name] = r.ownValue(v)
	}
	s.Command = []string{r.expand(h.Command.text)}
	shown := strings.Split(h.Command.value, " ") // a whole command line, as some users write it, has arguments too
	for _, a := range slices.Concat(h.Command.Args, h.Args) {
		s.Command = append(s.Command, r.expand(a))
		shown = append(shown, a.value)
	}
	s.Shown = strings.Join(redact.Args(shown), " ")
	s.Dir = r.where
	if h.Cwd.value != "" {
		s.Dir, s.DirAt = r.inWorkspace(r.expand(h.Cwd)), r.placeOf(h.Cwd.at)
	}
}

func (r *reader) inWorkspace(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(r.opts.Workspace, name)
}

// envFile returns the variables in a file.
func (r *reader) envFile(at text) map[string]string {
	data, err := os.ReadFile(r.inWorkspace(r.expand(at)))
	if err != nil {
		r.lackf(at.at, "the envFile cannot be read: %v", err)
	}
	r.own = envOf(string(plainText(data)))
	return r.own
}

// settings reads our settings: those of the server, or else those for all servers.
func (r *reader) settings(s *Server, own *settings, all *defaults) {
	if own == nil {
		own = &settings{}
	}
	s.Path = cmp.Or(own.Path.value, "/"+s.Name+"/mcp")
	if own.Path.value != "" && (!strings.HasPrefix(s.Path, "/") || path.Clean(s.Path) != s.Path || strings.ContainsAny(s.Path, " ?#")) {
		r.failf(own.Path.at, "path %q: want an absolute path like /%s/mcp", s.Path, s.Name)
	}
	if own.Prefix != nil {
		s.Prefix = &own.Prefix.value
		if !validPrefix.MatchString(*s.Prefix) {
			r.failf(own.Prefix.at, "prefix %q: want up to 32 of the characters A-Z, a-z, 0-9, _, -, . and /", *s.Prefix)
		}
	}
	r.tools(s, own.Tools, all.Tools)
	s.Safe = values(own.Safe)
	if own.Safe == nil {
		s.Safe = values(all.Safe)
	}
	if v := cmp.Or(own.Share, all.Share); v != nil {
		s.Share = *v
	}
	if v := cmp.Or(own.StopIdle, all.StopIdle); v != nil {
		s.StopIdle = v.value
	}
	if v := cmp.Or(own.MaxProcesses, all.MaxProcesses); v != nil {
		s.MaxProcesses = v.value
	}
	if v := cmp.Or(own.Timeout, all.Timeout); v != nil {
		s.Timeout = v.value
	}
	for _, v := range slices.Concat(own.HandoffAfter, all.HandoffAfter) { // the first that matches counts
		s.HandoffAfter = append(s.HandoffAfter, PatternDuration{v.Name, v.Value.value})
	}
	r.limits(s, own, all)
}

// tools reads which tools clients may call. A list of allowed tools for one server leaves tools denied
// that are denied for all.
func (r *reader) tools(s *Server, own, all *toolList) {
	for _, t := range []*toolList{all, own} {
		if t == nil {
			continue
		}
		if t.Allow != nil {
			if s.Allow = values(t.Allow); s.Allow == nil {
				s.Allow = []string{""} // none
			}
		}
		if t.Deny != nil {
			s.Deny = values(t.Deny)
		}
	}
}

// limits reads the limits for clients of the server.
func (r *reader) limits(s *Server, own *settings, all *defaults) {
	if v := cmp.Or(own.MaxCalls, all.MaxCalls); v != nil {
		s.MaxCalls = v.value
	}
	for _, v := range slices.Concat(own.ToolCalls, all.ToolCalls) { // the first that matches counts
		s.ToolCalls = append(s.ToolCalls, PatternCount{v.Name, v.Value.value})
	}
	if v := cmp.Or(own.Rate, all.Rate); v != nil {
		s.Rate.PerSecond = v.value
	}
	if v := cmp.Or(own.RateBurst, all.RateBurst); v != nil {
		s.Rate.Burst = v.value
		if s.Rate.PerSecond == 0 {
			r.failf(v.at, "rateBurst is %d: it needs a rate", v.value)
		}
	}
}

func values(all []text) (list []string) {
	for _, t := range all {
		list = append(list, t.value)
	}
	return list
}

// checkPaths checks that no two servers have the same path.
func (r *reader) checkPaths() {
	taken := make(map[string]string)
	if r.out.Merge {
		taken[MergedPath] = "all servers as one"
	}
	for _, s := range r.out.Servers {
		if is, ok := taken[s.Path]; ok {
			r.errs = append(r.errs, s.At.errorf("the path %s of the server %q is that of %s: set another with \"path\"", s.Path, s.Name, is))
		}
		taken[s.Path] = fmt.Sprintf("the server %q", s.Name)
	}
}
