package servers

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"holdfast/internal/config"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file applies the settings of a server to messages, by pure functions.

// matches reports whether a name matches one of the patterns, in which "*" stands for any
// text.
func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchesOne(p, name) })
}

func matchesOne(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return strings.HasSuffix(name, last)
}

// restricts is matchesOne for a pattern that takes something from a client: it also matches other spellings of a
// name. To a server that normalizes text (Unicode, NFKC) é is one character or two, and ｗ is w.
func restricts(pattern, name string) bool {
	return matchesOne(pattern, name) || !isASCII(name) && matchesOne(norm.NFKC.String(pattern), norm.NFKC.String(name))
}

func isASCII(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf })
}

// allowed reports whether clients may know a tool, by the server's own name for it.
func allowed(conf *config.Server, tool string) bool {
	return (conf.Allow == nil || matches(conf.Allow, tool)) &&
		!slices.ContainsFunc(conf.Deny, func(pattern string) bool { return restricts(pattern, tool) })
}

// showsLike reports whether clients know the same tools and prompts, by the same names, by two settings.
func showsLike(a, b *config.Server) bool {
	prefix := func(s *config.Server) string {
		if s.Prefix == nil {
			return ""
		}
		return *s.Prefix
	}
	return listsLike(a, b) && prefix(a) == prefix(b)
}

// listsLike reports whether clients may know the same tools by two settings.
func listsLike(a, b *config.Server) bool {
	return (a.Allow == nil) == (b.Allow == nil) && slices.Equal(a.Allow, b.Allow) && slices.Equal(a.Deny, b.Deny)
}

// unprefixed returns the server's own name for a tool or prompt, by the name that clients know.
// It returns false if that does not have the server's prefix.
func unprefixed(conf *config.Server, name string) (string, bool) {
	if conf.Prefix == nil {
		return name, true
	}
	return strings.CutPrefix(name, *conf.Prefix)
}

// plain reports whether a server's settings leave all messages as they are.
func plain(conf *config.Server) bool {
	return conf.Allow == nil && conf.Deny == nil && (conf.Prefix == nil || *conf.Prefix == "") && conf.Timeout == 0
}

// listed are the members of the results that have lists of names, by methods.
var listed = map[string]string{"tools/list": "tools", "prompts/list": "prompts"}

// ruledList returns the result of a list request with the names that clients know, and
// without the tools that they must not know.
func ruledList(conf *config.Server, method string, result []byte) []byte {
	member := listed[method]
	list := jsonrpc.Field(result, member)
	if list == nil {
		return result
	}
	var items []json.RawMessage
	if json.Unmarshal(list, &items) != nil {
		return result
	}
	kept := []byte{'['}
	for _, item := range items {
		name := jsonrpc.String(jsonrpc.Field(item, "name"))
		if method == "tools/list" && !allowed(conf, name) {
			continue
		}
		if conf.Prefix != nil && *conf.Prefix != "" {
			set, _ := jsonrpc.Set(item, jsonrpc.Quote(*conf.Prefix+name), "name")
			item = set
		}
		if len(kept) > 1 {
			kept = append(kept, ',')
		}
		kept = append(kept, item...)
	}
	result, _ = jsonrpc.Set(result, append(kept, ']'), member)
	return result
}

// nameAt has the path to the name of a tool or prompt in the params of requests.
var nameAt = map[string][]string{"tools/call": {"name"}, "prompts/get": {"name"}, "completion/complete": {"ref", "name"}}

// ruledRequest returns a request with the server's own names, or an error if clients know no
// tool or prompt by the name in it.
func ruledRequest(conf *config.Server, m jsonrpc.Message) (jsonrpc.Message, *jsonrpc.Error) {
	at, ok := nameAt[m.Method]
	if !ok {
		return m, nil
	}
	raw := jsonrpc.Field(m.Params, at...)
	if raw == nil || len(at) > 1 && !protocol.CompletesPrompt(m.Params) {
		return m, nil // a resource's completion; else the server says what is missing
	}
	known := jsonrpc.String(raw)
	name, ok := unprefixed(conf, known)
	if !ok || m.Method == "tools/call" && !allowed(conf, name) {
		return m, protocol.UnknownName(m.Method, known)
	}
	if name != known {
		protocol.Rename(&m, name, at...)
	}
	return m, nil
}
