package protocol

// Where transports without events and headers carry an event id: in params._meta,
// of what the server says, and of the client's request to go on after it. The
// server says them to clients whose capability resumableRequests has eventIds.
const (
	MetaEventID     = "holdfast/eventId"
	MetaLastEventID = "holdfast/lastEventId"
)
