package protocol

// Where transports without events and headers carry an event id: in params._meta,
// of what the server says, and of the client's request to go on after it. The
// server says them to clients whose capability resumableRequests has eventIds.
const (
	MetaEventID     = "holdfast/eventId"
	MetaLastEventID = "holdfast/lastEventId"
)

// Where a request says of which trace it is part, as W3C Trace Context has it (2026-07-28, "_meta",
// OpenTelemetry trace context; SEP-414).
const (
	MetaTraceParent = "traceparent"
	MetaTraceState  = "tracestate"
)

// MetaResumeToken is where a cancellation names its request by the resume token, for
// servers that may know another request by the id (SEP-975).
const MetaResumeToken = "holdfast/resumeToken"

// What a modern request says of its client, in params._meta (2026-07-28, Overview, "_meta").
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
)

// OwnClientInfo is the clientInfo of requests of Holdfast's own that are made for the sake of no client.
const OwnClientInfo = `{"name":"holdfast","version":"1"}`

// What a modern server says in the _meta of results and notifications.
const (
	MetaServerInfo     = "io.modelcontextprotocol/serverInfo"
	MetaSubscriptionID = "io.modelcontextprotocol/subscriptionId"
)

// ExtensionTasks names the tasks extension, in the capabilities' extensions.
const ExtensionTasks = "io.modelcontextprotocol/tasks"

// ExtensionResume names Holdfast's extension of 2026-07-28 by SEP-975: a call can be resumed
// with a token, and the end of its connection does not cancel it.
const ExtensionResume = "holdfast/resumableRequests"

// MetaRelatedTask says in a message which task it is about (2025-11-25, Tasks).
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
