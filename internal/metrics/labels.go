package metrics

import (
	"sync"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
)

// other stands for all values of a label that have no series of their own.
const other = "other"

// Bounds of the labels that a server can make: more tools, or longer names, count as [other].
const (
	mostTools   = 500
	longestTool = 128
)

// methods are the methods with series of their own. No client can add one.
var methods = func() map[string]bool {
	known := make(map[string]bool)
	for _, name := range []string{
		protocol.MethodInitialize, protocol.MethodDiscover, protocol.MethodPing, protocol.MethodToolsList, protocol.MethodCallTool,
		"resources/list", "resources/templates/list", protocol.MethodReadResource, protocol.MethodSubscribe, protocol.MethodUnsubscribe,
		"prompts/list", protocol.MethodGetPrompt, "completion/complete", protocol.MethodSetLevel, protocol.MethodSubscriptions,
		protocol.MethodTaskGet, protocol.MethodTaskUpdate, protocol.MethodTaskCancel, "tasks/list", "tasks/result",
	} {
		known[name] = true
	}
	return known
}()

// A toolKey is a tool of a server.
type toolKey struct{ server, tool string }

// listedTools are the tools that servers have listed. Any other name that a client calls makes no
// label.
type listedTools struct {
	mu  sync.RWMutex
	all map[toolKey]struct{}
}

// add adds the tools of a list.
func (l *listedTools) add(e *observe.ToolsListed) {
	fresh := false
	l.mu.RLock()
	for _, tool := range e.Tools {
		_, known := l.all[toolKey{e.Server, tool}]
		fresh = fresh || !known
	}
	l.mu.RUnlock()
	if !fresh {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tool := range e.Tools {
		if len(l.all) < mostTools && len(tool) <= longestTool {
			l.all[toolKey{e.Server, tool}] = struct{}{}
		}
	}
}

// labels returns the labels of a call: its method and its tool.
func (l *listedTools) labels(c *observe.Call) (method, tool string) {
	if !methods[c.Method] {
		return other, ""
	}
	if c.Method != protocol.MethodCallTool {
		return c.Method, ""
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if _, ok := l.all[toolKey{c.Server, c.Tool}]; !ok {
		return c.Method, other
	}
	return c.Method, c.Tool
}
