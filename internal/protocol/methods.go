package protocol

import (
	"iter"

	"holdfast/jsonrpc"
)

// Methods that the code names. The methods of SEP-975 are in resume.go, and the requests that may
// be made again in retry.go.
const (
	MethodInitialize    = "initialize"
	MethodDiscover      = "server/discover" // 2026-07-28
	MethodPing          = "ping"
	MethodToolsList     = "tools/list"
	MethodReadResource  = "resources/read"
	MethodSubscribe     = "resources/subscribe"
	MethodUnsubscribe   = "resources/unsubscribe"
	MethodGetPrompt     = "prompts/get"
	MethodSetLevel      = "logging/setLevel"
	MethodSubscriptions = "subscriptions/listen" // 2026-07-28
	MethodTaskGet       = "tasks/get"            // the tasks extension
	MethodTaskUpdate    = "tasks/update"
	MethodTaskCancel    = "tasks/cancel"
	MethodTaskList      = "tasks/list"   // 2025-11-25
	MethodTaskResult    = "tasks/result" // 2025-11-25

	MethodInitialized          = "notifications/initialized"
	MethodCancelled            = "notifications/cancelled"
	MethodProgress             = "notifications/progress"
	MethodLog                  = "notifications/message"
	MethodToolsListChanged     = "notifications/tools/list_changed"
	MethodPromptsListChanged   = "notifications/prompts/list_changed"
	MethodResourcesListChanged = "notifications/resources/list_changed"
	MethodResourceUpdated      = "notifications/resources/updated"
	MethodAcknowledged         = "notifications/subscriptions/acknowledged" // 2026-07-28
	MethodTaskStatus           = "notifications/tasks"                      // the tasks extension
	MethodLegacyTaskStatus     = "notifications/tasks/status"               // 2025-11-25
)

// Parsed parses a message that Holdfast has made. If raw is not a message, Parsed returns otherwise.
func Parsed(raw []byte, otherwise jsonrpc.Message) jsonrpc.Message {
	if m, err := jsonrpc.Parse(raw); err == nil {
		return m
	}
	return otherwise
}

// Requests returns the requests among some messages.
func Requests(msgs []jsonrpc.Message) iter.Seq[*jsonrpc.Message] {
	return func(yield func(*jsonrpc.Message) bool) {
		for i := range msgs {
			if msgs[i].Kind == jsonrpc.Request && !yield(&msgs[i]) {
				return
			}
		}
	}
}

// Opens reports whether a request of a method only begins a conversation: it may be a client's first request.
func Opens(method string) bool { return method == MethodInitialize || method == MethodDiscover }
