package observe

import (
	"slices"
	"time"
)

// An Event is what happened.
type Event interface{ event() }

// Events of a call.
type (
	// Promoted says that the call has a stream from now on.
	Promoted struct{ Number uint64 }
	// BecameTask says that the client was given a task's id in the place of the response.
	BecameTask struct{}
	// Attached says that the call's request is another one that was made again, for a reason: the call says what that one says.
	Attached struct{ Reason string }
	// HandedOff says that the client was given a handle for a response. What the server says from now on
	// is in another stream, whose entries count from 1; Was is the number of the one before, 0 if
	// the call was light.
	HandedOff struct{ Was, Number uint64 }
	// Appended says that a message of the server is in the call's stream. Data is nil at the end
	// of a call that was cancelled.
	Appended struct {
		Seq  uint64
		Data []byte
		Last bool
	}
)

// Events of readers.
type (
	// ReaderCame says that a connection begins to read a stream.
	ReaderCame struct{ *Reader }
	// ReaderRead says that all through the entry Seq was written to it.
	ReaderRead struct {
		*Reader
		Seq uint64
	}
	// ReaderWent says that it does not read the stream any more.
	ReaderWent struct {
		*Reader
		Seq      uint64 // of the last entry that it was sent
		Replayed uint64 // entries that it was sent, and that were there when it came
		Why      Why
	}
)

// Events of what this node passes on between its clients and other nodes, which have the sessions. Calls and readers are
// told of there.
type (
	// StreamPassed says that a stream of another node begins to be passed on to a client.
	StreamPassed struct {
		Door    Door
		Resumes bool // it goes on with what another connection began
	}
	// StreamPassedOver says that it is not passed on any more.
	StreamPassedOver struct {
		Door Door
		Why  Why
	}
	// RequestPassed says that another node has answered a client's request, or its client has left before that.
	RequestPassed struct {
		Begins  bool          // it begins calls
		Status  int           // of HTTP; 0: its client has left before there was one
		Refused string        // why it was refused before there was a call, or ""; as in [Refused]
		Took    time.Duration // until the end of the answer
	}
)

// A Reader is a connection that reads a stream.
type Reader struct {
	Session, Server string
	Number          uint64 // of the stream; 0: the standalone stream
	Door            Door
	After           uint64 // the sequence that it began after
	Came            time.Time
	Call            *Call // nil if it is not in flight; of a batch, one of its requests
}

// A Door is the way in which a reader came.
type Door uint8

// Doors.
const (
	DoorPost    Door = iota // the POST that began the call
	DoorListen              // a GET of the standalone stream
	DoorReplay              // a GET with Last-Event-ID
	DoorURL                 // the stream URL (SEP-1335)
	DoorSession             // a GET with the session id alone, of a call that the client has lost
	DoorResume              // requests/resume (SEP-975)
	DoorKey                 // the request again, under its idempotency key or a forwarding node's name
	DoorInput               // the request again, with the input that the call waits for (2026-07-28)
	DoorTask                // a request for a task's result
	DoorPair                // the one stream of revision 2024-11-05
	DoorSocket              // a WebSocket
	DoorPipe                // a pair of pipes
)

var doors = [...]string{
	DoorPost: "post", DoorListen: "listen", DoorReplay: "last_event_id", DoorURL: "stream_url", DoorSession: "session_id",
	DoorResume: "resume_token", DoorKey: "idempotency_key", DoorInput: "input", DoorTask: "task", DoorPair: "sse",
	DoorSocket: "websocket", DoorPipe: "pipe",
}

// String implements fmt.Stringer.
func (d Door) String() string { return doors[d] }

// DoorOf returns the door of a name.
func DoorOf(name string) (d Door, ok bool) {
	i := slices.Index(doors[:], name)
	return Door(max(i, 0)), i >= 0
}

// Doors returns all doors.
func Doors() []Door {
	all := make([]Door, len(doors))
	for i := range all {
		all[i] = Door(i)
	}
	return all
}

// Resumes reports whether a reader of a call that comes this way goes on with what another
// connection began.
func (d Door) Resumes() bool { return d >= DoorReplay && d <= DoorTask }

// A Why is why a reader went.
type Why uint8

// Reasons.
const (
	Finished     Why = iota // the stream has ended, and was written to its end
	Cut                     // the connection broke before that
	Superseded              // a newer connection reads the stream
	Disconnected            // Holdfast ended the connection, and the client is to come back
	Moved                   // the session has left this node
)

var whys = [...]string{Finished: "finished", Cut: "cut", Superseded: "superseded", Disconnected: "disconnected", Moved: "moved"}

// String implements fmt.Stringer.
func (w Why) String() string { return whys[w] }

// Whys returns all reasons.
func Whys() []Why { return []Why{Finished, Cut, Superseded, Disconnected, Moved} }

// Events of sessions.
type (
	// SessionBegan says that a session is open here.
	SessionBegan struct{ Session }
	// SessionEnded says that it is not any more: it has ended, or has left this node.
	SessionEnded struct {
		Session
		Left bool
	}
	// TakenOver says that a session of another node is here. It began before ([SessionBegan]).
	TakenOver struct {
		Session
		From    string // the node that had it
		Took    time.Duration
		Again   int // calls that are made again
		Unknown int // calls that ended with "outcome unknown"
	}
	// SessionRevived says that a session has begun again of which no node had anything but its id. It began before
	// ([SessionBegan]).
	SessionRevived struct {
		Session
		Woke bool // it was asleep, and has lost nothing
	}
	// SessionSlept says that a session has fallen asleep: it has left this node ([SessionEnded]), and its id wakes it.
	SessionSlept struct{ Session }
	// ToolsListed says which tools a session's server has listed.
	ToolsListed struct {
		Session
		Tools []string
	}
	// BackendOpened says that a backend was opened for a session, a process for example, or could
	// not be.
	BackendOpened struct {
		Session
		Took time.Duration
		Err  error
	}
	// BackendClosed says that it has ended.
	BackendClosed struct{ Session }
)

// A Session is what is known of one.
type Session struct {
	Name      string // public
	Server    string
	Principal string
	Carrier   bool // it carries modern requests
}

// Other events.
type (
	// Refused says that a request was refused, before there was a call.
	Refused struct {
		Reason string  // one of few
		Status int     // of HTTP
		Denied *Denied // of one that Holdfast itself has refused with status 401 or 403; else nil
	}
	// Waited says that a call has waited in the queue of calls over a limit, and whether it began
	// then.
	Waited struct {
		Took  time.Duration
		Began bool
	}
	// WebhookTried says what became of a webhook: "sent", "failed" (it is tried again), "given_up",
	// "refused" or "dropped".
	WebhookTried struct{ Result string }
	// PageActed says that an operator has asked for an action on the live page.
	PageActed struct {
		Action string // one of few
		Done   bool   // else it failed
	}
	// PageRefused says that the live page has refused a request for its token: "missing", "wrong", or "limited", after too
	// many that were wrong.
	PageRefused struct{ Reason string }
	// EngineAsked says how long the engine of the store took.
	EngineAsked struct {
		Operation string // one of few
		Took      time.Duration
		Err       error
	}
)

// Denied is what is known of a request that was refused with status 401 or 403. What the client
// chooses is cut to [MostDenied] bytes.
type Denied struct {
	At        time.Time
	Server    string // as in a [Call]
	Principal string // who has made the request, if that was proven; else ""
	HTTP      string // the method of HTTP
	Method    string // of the message, if it was read; else ""
	Tool      string // that it calls, or ""
	Remote    string // the client's address, without a port
}

// MostDenied is how long each text of a [Denied] is that the client chooses.
const MostDenied = 256

func (Promoted) event()         {}
func (BecameTask) event()       {}
func (Attached) event()         {}
func (HandedOff) event()        {}
func (Appended) event()         {}
func (ReaderCame) event()       {}
func (ReaderRead) event()       {}
func (ReaderWent) event()       {}
func (SessionBegan) event()     {}
func (SessionEnded) event()     {}
func (TakenOver) event()        {}
func (SessionRevived) event()   {}
func (SessionSlept) event()     {}
func (ToolsListed) event()      {}
func (BackendOpened) event()    {}
func (BackendClosed) event()    {}
func (Refused) event()          {}
func (Waited) event()           {}
func (WebhookTried) event()     {}
func (PageActed) event()        {}
func (PageRefused) event()      {}
func (EngineAsked) event()      {}
func (StreamPassed) event()     {}
func (StreamPassedOver) event() {}
func (RequestPassed) event()    {}
