package observe

import (
	"slices"
	"time"
)

// An Event is something that happened.
type Event interface{ event() }

// Events of a call.
type (
	// Promoted says that the call has a stream from now on.
	Promoted struct{ Number uint64 }
	// BecameTask says that the client got a task's id instead of the response.
	BecameTask struct{}
	// Attached says that the call's request is a stranded call made again, for a reason: the call copies the messages of
	// that one.
	Attached struct{ Reason string }
	// HandedOff says that the client got a handle for a response. The server's next messages are in
	// another stream, with entries that count from 1. Was is the number of the stream before, 0 if the
	// call was light.
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
	// ReaderRead says that the entries up to Seq were written to a connection.
	ReaderRead struct {
		*Reader
		Seq uint64
	}
	// ReaderWent says that a connection does not read the stream any more.
	ReaderWent struct {
		*Reader
		Seq      uint64 // of the last entry that was sent to it
		Replayed uint64 // entries that were sent to it, and were stored before it came
		Why      Why
	}
)

// Events of exchanges that this node forwards between its clients and other nodes, which have the sessions. Those nodes
// tell of the calls and readers.
type (
	// StreamPassed says that this node begins to pass a stream of another node on to a client.
	StreamPassed struct {
		Door    Door
		Resumes bool // it continues a call that another connection began
	}
	// StreamPassedOver says that the stream is not passed on any more.
	StreamPassedOver struct {
		Door Door
		Why  Why
	}
	// RequestPassed says that another node has answered a client's request, or its client has left before that.
	RequestPassed struct {
		Begins  bool          // the request begins calls
		Status  int           // of HTTP; 0: its client left before that
		Refused string        // the reason if it was refused before there was a call, as in [Refused], or ""
		Took    time.Duration // until the end of the answer
	}
)

// A Reader is a connection that reads a stream.
type Reader struct {
	Session, Server string
	Number          uint64 // of the stream; 0: the standalone stream
	Door            Door
	After           uint64 // the sequence after which it began to read
	Came            time.Time
	Call            *Call // the call of the stream, of a batch one of its requests; nil: not in flight
}

// A Door is the way in which the connection of a reader came.
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

// Resumes reports whether a reader of a call that comes this way continues a call that another
// connection began.
func (d Door) Resumes() bool { return d >= DoorReplay && d <= DoorTask }

// A Why is the reason for which a reader went.
type Why uint8

// Reasons.
const (
	Finished     Why = iota // the stream has ended, and was written to its end
	Cut                     // the connection broke before that
	Superseded              // a newer connection reads the stream
	Disconnected            // Holdfast ended the connection, for the client to come back
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
	// SessionEnded says that a session is not open here any more: it has ended, or (Left) has left this node.
	SessionEnded struct {
		Session
		Left bool
	}
	// TakenOver says that this node has taken a session over. [SessionBegan] came before.
	TakenOver struct {
		Session
		From    string // the node that had it
		Took    time.Duration
		Again   int // calls that are made again
		Unknown int // calls that ended with "outcome unknown"
	}
	// SessionRevived says that a session has begun again that no node had any more, by its id alone.
	// [SessionBegan] came before.
	SessionRevived struct {
		Session
		Woke bool // it was asleep, and has lost nothing
	}
	// SessionSlept says that a session has fallen asleep: its id wakes it. [SessionEnded] came with Left.
	SessionSlept struct{ Session }
	// ToolsListed names the tools that a session's server has listed.
	ToolsListed struct {
		Session
		Tools []string
	}
	// BackendOpened says that a backend was opened for a session, such as a process, or could not
	// be opened.
	BackendOpened struct {
		Session
		Took time.Duration
		Err  error
	}
	// BackendClosed says that the backend of a session has ended.
	BackendClosed struct{ Session }
)

// A Session describes a session.
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
		Reason string  // one of a few words
		Status int     // of HTTP
		Denied *Denied // of a request that Holdfast itself has refused with status 401 or 403; else nil
	}
	// Waited says that a call has waited in the queue of calls over a limit, and whether it began
	// after that.
	Waited struct {
		Took  time.Duration
		Began bool
	}
	// WebhookTried has the result of a try to send a webhook: "sent", "failed" (it is tried again),
	// "given_up", "refused" or "dropped".
	WebhookTried struct{ Result string }
	// PageActed says that an operator has asked for an action on the live page.
	PageActed struct {
		Action string // one of a few words
		Done   bool   // false: it failed
	}
	// PageRefused says that the live page has refused a request because of its token: "missing", "wrong", or "limited",
	// after too many wrong ones.
	PageRefused struct{ Reason string }
	// EngineAsked says how long an operation of the store's engine took.
	EngineAsked struct {
		Operation string // one of a few words
		Took      time.Duration
		Err       error
	}
)

// Denied describes a request that was refused with status 401 or 403. Texts that the client chooses
// are cut to [MostDenied] bytes.
type Denied struct {
	At        time.Time
	Server    string // as in a [Call]
	Principal string // of the request, if it was proven; else ""
	HTTP      string // the method of HTTP
	Method    string // of the message, if it was read; else ""
	Tool      string // the tool that it calls, or ""
	Remote    string // the client's address, without a port
}

// MostDenied bounds each text of a [Denied] that the client chooses, in bytes.
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
