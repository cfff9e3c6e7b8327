package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// A File is a file in which hosts have their servers.
type File struct {
	Host *Host // nil: any that writes JSON
	Path string
}

// Files returns the files of all hosts, of the project first. They need not be there. In the home directory a host may have one file for both.
func Files(s *System) (all []File) {
	for _, scope := range []string{Project, User} {
		for _, h := range hosts {
			path, err := h.File(s, scope)
			if err != nil || !h.HasScope(scope) || slices.ContainsFunc(all, func(f File) bool { return isSame(f.Path, path) }) {
				continue
			}
			all = append(all, File{h, path})
		}
	}
	return all
}

// isSame reports whether two paths are of one file.
func isSame(one, other string) bool {
	if filepath.Clean(one) == filepath.Clean(other) {
		return true
	}
	a, err := os.Stat(one)
	if err != nil {
		return false
	}
	b, err := os.Stat(other)
	return err == nil && os.SameFile(a, b)
}

// FileAt returns the file at any path. Its host is the one that writes TOML if its name ends in .toml.
func FileAt(path string) File {
	if strings.EqualFold(filepath.Ext(path), ".toml") {
		for _, h := range hosts {
			if h.form.toml {
				return File{h, path}
			}
		}
	}
	return File{Path: path}
}

// JSON returns the content of the file in the form that JSON files of hosts have. Of a TOML file it has the servers alone.
func (f File) JSON() ([]byte, error) {
	data, err := os.ReadFile(f.Path)
	if err != nil || f.Host == nil || !f.Host.form.toml {
		return data, err
	}
	var all map[string]any
	if err := toml.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("%s: not TOML: %w", f.Path, err)
	}
	servers, _ := all[f.Host.form.section[0]].(map[string]any)
	if len(servers) == 0 {
		return nil, nil
	}
	for _, one := range servers {
		if s, ok := one.(map[string]any); ok {
			ofCodex(s)
		}
	}
	return json.Marshal(map[string]any{"mcpServers": servers})
}

// ofCodex gives the members of a server the names that they have in JSON files.
func ofCodex(s map[string]any) {
	for from, to := range map[string]string{"http_headers": "headers", "enabled_tools": "includeTools", "disabled_tools": "excludeTools"} {
		if v, ok := s[from]; ok {
			s[to] = v
			delete(s, from)
		}
	}
	headers, _ := s["headers"].(map[string]any)
	if headers == nil {
		headers = make(map[string]any)
	}
	if name, ok := s["bearer_token_env_var"].(string); ok {
		headers["Authorization"] = "Bearer ${" + name + "}"
	}
	if of, ok := s["env_http_headers"].(map[string]any); ok {
		for header, name := range of {
			headers[header] = fmt.Sprintf("${%v}", name)
		}
	}
	if len(headers) > 0 {
		s["headers"] = headers
	}
	if names, ok := s["env_vars"].([]any); ok {
		env, _ := s["env"].(map[string]any)
		if env == nil {
			env = make(map[string]any)
		}
		for _, name := range names {
			if value, ok := os.LookupEnv(fmt.Sprint(name)); ok && env[fmt.Sprint(name)] == nil {
				env[fmt.Sprint(name)] = value
			}
		}
		s["env"] = env
	}
	for _, other := range []string{"bearer_token_env_var", "env_http_headers", "env_vars", "startup_timeout_sec", "startup_timeout_ms", "tool_timeout_sec"} {
		delete(s, other)
	}
}
