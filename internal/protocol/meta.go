package protocol

// The members of params._meta with an event id, on transports without events and headers: of the
// server's messages, and of the client's request to go on after one. The server writes them to
// clients with eventIds in their capability resumableRequests.
const (
	MetaEventID     = "holdfast/eventId"
	MetaLastEventID = "holdfast/lastEventId"
)

// The members in which a request names its trace, in the form of W3C Trace Context (2026-07-28,
// "_meta", OpenTelemetry trace context; SEP-414).
const (
	MetaTraceParent = "traceparent"
	MetaTraceState  = "tracestate"
)

// MetaResumeToken is the member in which a cancellation names its request by the resume token, for
// servers that may know another request by the id (SEP-975).
const MetaResumeToken = "holdfast/resumeToken"

// The members of params._meta in which a modern request describes its client (2026-07-28, Overview, "_meta").
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
)

// OwnClientInfo is the clientInfo of Holdfast's own requests, which it makes for no client.
const OwnClientInfo = `{"name":"holdfast","version":"1"}`

// The members of _meta in a modern server's results and notifications.
const (
	MetaServerInfo     = "io.modelcontextprotocol/serverInfo"
	MetaSubscriptionID = "io.modelcontextprotocol/subscriptionId"
)

// ExtensionTasks names the tasks extension, in the capabilities' extensions.
const ExtensionTasks = "io.modelcontextprotocol/tasks"

// ExtensionResume names Holdfast's extension of 2026-07-28 with SEP-975: a call can be resumed with
// a token, and the end of its connection does not cancel it.
const ExtensionResume = "holdfast/resumableRequests"

// MetaRelatedTask is the member in which a message names the task that it is about (2025-11-25, Tasks).
const MetaRelatedTask = "io.modelcontextprotocol/related-task"

// States of a task (2025-11-25, and the tasks extension).
const (
	TaskWorking       = "working"
	TaskInputRequired = "input_required"
	TaskCompleted     = "completed"
	TaskFailed        = "failed"
	TaskCancelled     = "cancelled"
)

// Types of results (2026-07-28, Overview, "ResultType"; the last is the tasks extension's).
const (
	ResultComplete      = "complete"
	ResultInputRequired = "input_required"
	ResultTask          = "task"
)

// OwnExtensions begin the names of Holdfast's extensions.
const OwnExtensions = "holdfast/"
