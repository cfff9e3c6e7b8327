package server

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/websocket"
	"holdfast/jsonrpc"
)

// A bodyReader reads the bodies of requests, and answers the requests that it refuses.
type bodyReader struct {
	answers *answering.Writer
	callers *callers
	most    int64 // bytes of a body
	timeout time.Duration
	flight  *budget.Flight // nil: bytes on their way are not counted
}

// limit bounds the time until a request's body begins, and, if the body is short, until it has come; [bodyReader.read] bounds
// longer ones. The bound also holds where net/http discards a body. It is not set if the http.Server has a ReadTimeout.
//
//go:noinline
func (b *bodyReader) limit(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 || serverLimits(r) {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(b.timeout))
}

// unlimit removes the bound, when the body has been read. net/http reads on from the connection, to notice that the client disconnects.
func (b *bodyReader) unlimit(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 && !serverLimits(r) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
}

// serverLimits reports whether the http.Server bounds the time of reading requests.
func serverLimits(r *http.Request) bool {
	s, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	return ok && s.ReadTimeout > 0
}

// shortBody is the size, in bytes, up to which a body is read at once, within [Options.BodyTimeout].
const shortBody = 64 << 10

// tinyBody is the size, in bytes, up to which a body is not counted: it costs less than its
// connection. So small requests and responses are read even when memory for bodies has run out.
const tinyBody = 8 << 10

// read reads a body, and bounds its size, its memory, and its time: [Options.BodyTimeout], and a second for each 64 KiB read.
func (b *bodyReader) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > b.most {
		return nil, &http.MaxBytesError{Limit: b.most}
	}
	if n := r.ContentLength; n >= 0 && n <= shortBody {
		if n > tinyBody {
			tenant := b.callers.tenant(r)
			if !b.flight.Read(tenant, n) {
				return nil, answering.ErrNoRoom
			}
			defer b.flight.Done(tenant, n)
		}
		data := make([]byte, n)
		_, err := io.ReadFull(r.Body, data)
		return data, err
	}
	c := http.NewResponseController(w)
	x := intake{flight: b.flight, tenant: b.callers.tenant(r), most: b.most, patience: b.timeout}
	if !serverLimits(r) {
		x.deadline = c.SetReadDeadline
	}
	defer x.done()
	return x.read(r.Body, r.ContentLength)
}

// An intake reads one long message, and counts it as on its way meanwhile.
type intake struct {
	flight   *budget.Flight
	tenant   string
	most     int64
	patience time.Duration
	deadline func(time.Time) error // sets the reader's deadline; nil: the http.Server sets it
	counted  int64
}

// read reads r to its end, which comes after size bytes; -1: the size is not known. Memory is allocated as bytes come, and not for
// the announced size. The bytes stay counted until done.
func (x *intake) read(r io.Reader, size int64) ([]byte, error) {
	began := time.Now()
	room := int64(shortBody)
	if size < 0 {
		room = tinyBody
	} else if !x.count(max(size, room)) {
		return nil, answering.ErrNoRoom
	}
	data := make([]byte, 0, room)
	for {
		if len(data) == cap(data) {
			room := int64(2 * cap(data))
			if size > 0 {
				room = min(room, size+1) // one byte more, to see the end
			}
			if size < 0 && !x.count(room-x.counted) {
				return nil, answering.ErrNoRoom
			}
			data = append(make([]byte, 0, room), data...)
		}
		if x.deadline != nil {
			_ = x.deadline(began.Add(x.patience + time.Duration(len(data)>>16)*time.Second))
		}
		n, err := r.Read(data[len(data):min(cap(data), len(data)+shortBody)])
		data = data[:len(data)+n]
		switch {
		case int64(len(data)) > x.most:
			return nil, &http.MaxBytesError{Limit: x.most}
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, err
		}
	}
}

// count counts n more bytes. It returns false if there is no room for them.
func (x *intake) count(n int64) bool {
	if !x.flight.Read(x.tenant, n) {
		return false
	}
	x.counted += n
	return true
}

// done ends the counting.
func (x *intake) done() {
	x.flight.Done(x.tenant, x.counted)
	x.counted = 0
}

// Read reads a piece of a message. Pieces are counted as those of a body are, and must come in time.
func (x *pieces) Read(b []byte) (int, error) {
	if x.n == 0 {
		x.began = time.Now()
	}
	_ = x.deadline(x.began.Add(x.patience + time.Duration(x.n>>16)*time.Second))
	n, err := x.r.Read(b)
	x.n += int64(n)
	if x.n > tinyBody && x.n > x.counted && !x.count(x.n) { // which counts at least as much again
		return n, answering.ErrNoRoom
	}
	return n, err
}

// pieces reads the messages of a WebSocket, one after the other, each in pieces.
type pieces struct {
	intake
	r     io.Reader
	n     int64 // bytes of the message that have come
	began time.Time
}

// meter returns a Meter that counts the messages of a tenant's WebSocket.
func (b *bodyReader) meter(tenant string, deadline func(time.Time) error) websocket.Meter {
	return &pieces{intake: intake{flight: b.flight, tenant: tenant, patience: b.timeout, deadline: deadline}}
}

// Begin returns the reader of the next message, which comes from r.
func (x *pieces) Begin(r io.Reader) io.Reader {
	x.r, x.n = r, 0
	return x
}

// Done ends the reading of a message.
func (x *pieces) Done() { x.done() }

// readMessages reads the body of a request and parses its messages, which the caller passes to [bodyReader.admits]. If
// ok is false, the request was answered.
func (b *bodyReader) readMessages(w http.ResponseWriter, r *http.Request) (msgs []jsonrpc.Message, batch, ok bool) {
	if !isJSON(r.Header["Content-Type"]) {
		b.answers.Reject(w, http.StatusUnsupportedMediaType, errf(codeInvalid, "Content-Type must be application/json"))
		return nil, false, false
	}
	if coding := codingOf(r.Header["Content-Encoding"]); coding != "" {
		w.Header().Set("Accept-Encoding", "identity") // RFC 9110, section 15.5.16
		b.answers.Reject(w, http.StatusUnsupportedMediaType, errf(codeInvalid,
			"Content-Encoding %.40q is not understood here: send the body as it is, without Content-Encoding", coding))
		return nil, false, false
	}
	data, err := b.read(w, r)
	if err != nil {
		b.rejectBody(w, r, err)
		return nil, false, false
	}
	b.unlimit(w, r)
	msgs, batch, err = exchange.Parse(data)
	switch {
	case errors.Is(err, jsonrpc.ErrParse):
		b.answers.Reject(w, http.StatusBadRequest, errf(jsonrpc.CodeParse, "%v", err))
	case err != nil:
		b.rejectInvalid(w, data, errf(codeInvalid, "%v", err))
	}
	return msgs, batch, err == nil
}

// rejectBody answers a request whose body could not be read.
//
//go:noinline
func (b *bodyReader) rejectBody(w http.ResponseWriter, r *http.Request, err error) {
	var tooLarge *http.MaxBytesError
	var refused *protocol.Unauthorized
	switch {
	case errors.As(err, &tooLarge):
		b.answers.Reject(w, http.StatusRequestEntityTooLarge, errf(codeInvalid, "the body is larger than %d bytes", tooLarge.Limit))
	case errors.As(err, &refused): // from Options.Authenticate, which has wrapped the body
		b.answers.FailDenied(w, err, b.answers.Denied(r, nil, b.callers.asker(r)))
	case errors.Is(err, answering.ErrNoRoom):
		w.Header().Set("Connection", "close") // the rest of the body is not read
		b.answers.Fail(w, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.answers.Reject(w, http.StatusRequestTimeout, errf(jsonrpc.CodeParse, "the body took too long"))
	default:
		b.answers.Reject(w, http.StatusBadRequest, errf(jsonrpc.CodeParse, "the body ended early: %v", err))
	}
}

// admits reports whether every server would read the messages of an exchange alike, and the client may send them. If not,
// the request was answered.
func (b *bodyReader) admits(w http.ResponseWriter, x *exchange.Exchange, ofModern bool) bool {
	if e := exchange.CheckClear(x.Msgs, ofModern); e != nil {
		b.answers.TellRefused(w, http.StatusBadRequest, e.Why)
		b.answers.RejectAs(w, http.StatusBadRequest, e.Answer(x.Msgs, x.Batch))
		return false
	}
	not, err := b.callers.permitted(x.HTTP.Context(), x.Msgs)
	if err != nil {
		b.answers.FailDenied(w, err, b.answers.Denied(x.HTTP, not, b.callers.asker(x.HTTP)))
	}
	return err == nil
}

// rejectInvalid rejects JSON that is not a message with status 400. The error has the request's id if that can be read
// (JSON-RPC 2.0, section 5).
func (b *bodyReader) rejectInvalid(w http.ResponseWriter, data []byte, e *jsonrpc.Error) {
	id, _ := rpc.RequestID(data)
	b.answers.TellRefused(w, http.StatusBadRequest, e)
	b.answers.RejectAs(w, http.StatusBadRequest, jsonrpc.AppendError(nil, id, e))
}

func isJSON(contentType []string) bool {
	if len(contentType) != 1 {
		return false
	}
	if contentType[0] == "application/json" {
		return true
	}
	media, _, err := mime.ParseMediaType(contentType[0])
	return err == nil && media == "application/json"
}

// codingOf returns the coding that a body has according to its Content-Encoding, or "" if it has none.
func codingOf(contentEncoding []string) string {
	for _, list := range contentEncoding {
		for coding := range strings.SplitSeq(list, ",") {
			if coding = strings.TrimSpace(coding); coding != "" && !strings.EqualFold(coding, "identity") {
				return coding
			}
		}
	}
	return ""
}
