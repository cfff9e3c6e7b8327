package protocol

// MethodCallTool is the only method that is as safe as its tool.
const MethodCallTool = "tools/call"

// safe are the requests of a client that may be made again after any outcome of the first time:
// they only read, or set the same value again. Revisions 2024-11-05 to 2026-07-28, and SEP-975.
//
// tasks/cancel and tasks/update are not among them: the second time is answered with an error, as
// the task does not wait for it any more.
var safe = map[string]bool{
	"initialize": true, "ping": true,
	"server/discover":          true, // 2026-07-28
	"tools/list":               true,
	"prompts/list":             true,
	"prompts/get":              true,
	"resources/list":           true,
	"resources/templates/list": true,
	"resources/read":           true,
	"resources/subscribe":      true,
	"resources/unsubscribe":    true,
	"completion/complete":      true,
	"logging/setLevel":         true,
	"tasks/get":                true, // 2025-11-25 and 2026-07-28
	"tasks/list":               true, // 2025-11-25
	"tasks/result":             true, // 2025-11-25
	"subscriptions/listen":     true, // 2026-07-28
	MethodResume:               true,
	MethodStatus:               true,
	MethodStatusAll:            true,
}

// RetrySafe reports whether a request may be made again without harm, when it is unknown whether
// the server has carried it out. It is the only place that decides this. tool is called for a
// tools/call only: it reports whether the tool's hints (readOnlyHint, idempotentHint) or the
// operator say that the tool is safe. Nil stands for false. A method outside the specification,
// such as a vendor's, may charge a card: it is not safe.
func RetrySafe(method string, tool func() bool) bool {
	if method == MethodCallTool {
		return tool != nil && tool()
	}
	return safe[method]
}

// unrecorded are the requests, beside the safe ones, that may lose their answer with the
// connection: tasks/get shows their effect.
var unrecorded = map[string]bool{"tasks/cancel": true, "tasks/update": true}

// Unrecorded reports whether a request that is not safe may be answered without being kept. That
// holds only if no other node can run it: where another node may take it over, it has to be
// recorded before it runs.
func Unrecorded(method string) bool { return unrecorded[method] }
