package protocol

// Where transports without events and headers carry an event id: in params._meta,
// of what the server says, and of the client's request to go on after it. The
// server says them to clients whose capability resumableRequests has eventIds.
const (
	MetaEventID     = "holdfast/eventId"
	MetaLastEventID = "holdfast/lastEventId"
)

// MetaResumeToken is where a cancellation names its request by the resume token, for
// servers that may know another request by the id (SEP-975).
const MetaResumeToken = "holdfast/resumeToken"

// MetaProtocolVersion is where a request without a session names its revision
// (2026-07-28).
const MetaProtocolVersion = "io.modelcontextprotocol/protocolVersion"
