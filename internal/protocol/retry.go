package protocol

// MethodCallTool is the one method whose safety its tool decides.
const MethodCallTool = "tools/call"

// safe are the requests of a client that may be made again, whatever became of the
// first time: they only read, or set what is set again. Revisions 2024-11-05 to
// 2026-07-28, and SEP-975.
//
// Not among them are tasks/cancel and tasks/update: the second time is answered with
// an error, as the task does not wait for it any more.
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

// RetrySafe says whether a request may be made again without harm, when nobody knows
// whether the server did what it asks for. It is the only place that decides this. tool
// is asked about the tool of a tools/call only: whether its hints (readOnlyHint,
// idempotentHint) or the operator say that it is safe. Nil stands for no. A method that
// is not in the specification, a vendor's, may charge a card: it is not safe.
func RetrySafe(method string, tool func() bool) bool {
	if method == MethodCallTool {
		return tool != nil && tool()
	}
	return safe[method]
}

// unrecorded are the requests, beside those that are safe, whose answer may get lost
// with the connection that carries it: what they did is seen by tasks/get.
var unrecorded = map[string]bool{"tasks/cancel": true, "tasks/update": true}

// Unrecorded says whether a request that is not safe may all the same be answered with
// nothing kept of it. That holds only where its node alone runs it: where another may
// take it over, it has to be recorded before it runs.
func Unrecorded(method string) bool { return unrecorded[method] }
