package server

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// decodePost decodes a POST of messages (2025-11-25, Transports, "Sending Messages to the
// Server"). If it is false the request was answered.
func (h *Handler) decodePost(w http.ResponseWriter, x *exchange) bool {
	var ok bool
	if x.msgs, x.batch, ok = h.messages(w, x.r); !ok {
		return false
	}
	if isModern(x) {
		x.principal = h.principal(x.r)
		return h.decodeModern(w, x)
	}
	if !h.identify(w, x) {
		return false
	}
	var err error
	switch {
	case h.opts.Stateless:
		return h.decodeStateless(w, x)
	case !x.batch && (h.ours(&x.msgs[0]) || x.from != nil && isBetweenNodes(x.msgs[0].Method)):
		x.purpose = forRequest
	case requests(x.msgs) == 0:
		x.purpose = forMessages
		return h.roamed(w, x)
	case initializes(x.msgs) && x.secret == "" && x.r.Header[protocol.HeaderSession] == nil:
		x.purpose = forSession
		err = checkMessages(x.msgs, x.batch, stageNew, "")
		x.batch = false
	default:
		x.purpose = forMessages
	}
	if err != nil {
		h.fail(w, err)
	}
	return err == nil
}

// requests returns how many of the messages are requests.
func requests(msgs []jsonrpc.Message) (n int) {
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			n++
		}
	}
	return n
}

// startMessages begins to serve what was POSTed to a session.
func (h *Handler) startMessages(x *exchange, o *outcome) (err error) {
	revision := ""
	if x.batch {
		revision = x.session.Revision()
	}
	if err := checkMessages(x.msgs, x.batch, stageOpen, revision); err != nil {
		return err
	}
	if requests(x.msgs) == 0 {
		o.kind = outcomeAccepted
		return h.send(x)
	}
	if x.once.key, err = keyOf(x.r, x.msgs); err != nil {
		return errf(codeInvalid, "%v", err)
	}
	if len(x.msgs) == 1 {
		if x.session, err = x.session.TaskHome(&x.msgs[0]); err != nil {
			return err
		}
		if x.session.AsksForTask(&x.msgs[0]) {
			return h.startTask(x, o)
		}
	}
	return h.startCall(x, o)
}

// startCall begins the call of the requests of an exchange, or finds the one that they
// have begun before.
func (h *Handler) startCall(x *exchange, o *outcome) (err error) {
	light := x.once.key == "" && h.light(x.r.Context(), x.r.Header, x.session, x.msgs)
	if o.begun, err = h.begin(x.session, x.msgs, light, x.once, x.origin()); err != nil {
		if o.begun, err = h.beginInTurn(x, x.msgs, light, err); err != nil {
			return err
		}
	}
	switch {
	case o.number == 0:
		o.kind = outcomeLight
	case h.opts.Response == ResponseJSON && x.once.key == "":
		o.kind = outcomeJSON
	case o.call != nil:
		o.kind = outcomeCall
	default: // it was begun before: after the event that the client has last seen, or from the oldest that is kept
		o.kind = outcomeStream
		o.at, err = cursorAfter(x.r.Context(), o.session, o.number, x.last)
	}
	return err
}

// usualAccept is what most clients accept.
const usualAccept = "application/json, text/event-stream"

// messages reads the body of a POST. If it is not what it should be the request
// is answered, and ok is false.
func (h *Handler) messages(w http.ResponseWriter, r *http.Request) (msgs []jsonrpc.Message, batch, ok bool) {
	if accept := r.Header["Accept"]; len(accept) == 1 && accept[0] == usualAccept {
		return h.body(w, r)
	}
	if !accepts(r.Header["Accept"], "application/json") || !accepts(r.Header["Accept"], "text/event-stream") {
		h.reject(w, http.StatusNotAcceptable, errf(codeInvalid,
			"Accept must list both application/json and text/event-stream"))
		return nil, false, false
	}
	return h.body(w, r)
}

// body reads and parses a body of JSON.
func (h *Handler) body(w http.ResponseWriter, r *http.Request) (msgs []jsonrpc.Message, batch, ok bool) {
	if !isJSON(r.Header["Content-Type"]) {
		h.reject(w, http.StatusUnsupportedMediaType, errf(codeInvalid, "Content-Type must be application/json"))
		return nil, false, false
	}
	data, err := h.read(w, r)
	if err == nil {
		h.unlimit(w, r)
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		h.reject(w, http.StatusRequestEntityTooLarge, errf(codeInvalid, "the body is larger than %d bytes", tooLarge.Limit))
		return nil, false, false
	case errors.Is(err, errNoRoom):
		w.Header().Set("Connection", "close") // and what comes is not read
		h.fail(w, err)
		return nil, false, false
	case errors.Is(err, os.ErrDeadlineExceeded):
		h.reject(w, http.StatusRequestTimeout, errf(jsonrpc.CodeParse, "the body took too long"))
		return nil, false, false
	case err != nil:
		h.reject(w, http.StatusBadRequest, errf(jsonrpc.CodeParse, "the body ended early: %v", err))
		return nil, false, false
	}
	msgs, batch, err = jsonrpc.ParseBody(data)
	switch {
	case errors.Is(err, jsonrpc.ErrParse):
		h.reject(w, http.StatusBadRequest, errf(jsonrpc.CodeParse, "%v", err))
	case err != nil:
		h.reject(w, http.StatusBadRequest, errf(codeInvalid, "%v", err))
	default:
		var not *jsonrpc.Message
		if not, err = h.permitted(r.Context(), msgs); err != nil {
			h.failDenied(w, err, h.denied(r, not, h.asker(r)))
		}
	}
	return msgs, batch, err == nil
}

// accepted answers notifications and responses that were handed over, which have no answer.
func (h *Handler) accepted(w http.ResponseWriter, x *exchange) {
	w.WriteHeader(http.StatusAccepted)
	if x.purpose != forPairMessages {
		return
	}
	if _, err := io.WriteString(w, "Accepted"); err != nil && !errors.Is(err, http.ErrBodyNotAllowed) {
		h.logger.Debug("202 not written", "error", err)
	}
}

// send hands over notifications and responses. A response that the backend does
// not take now has to be sent again, and so has all that comes to a session which
// is no longer here, or whose backend cannot be opened for now: that is an error.
func (h *Handler) send(x *exchange) error {
	ctx := x.values()
	for i := range x.msgs {
		err := x.session.Send(ctx, x.msgs[i], x.r.Header)
		if errors.Is(err, session.ErrNotDelivered) || errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrBusy) {
			return err
		}
		if err != nil {
			h.logger.Warn("message not delivered", "session", x.session.Name(), "method", x.msgs[i].Method, "error", err)
		}
	}
	return nil
}

// answerLight answers requests whose call is light with JSON, unless it is stored before
// it ends: then its stream is the answer.
//
//go:noinline
func (h *Handler) answerLight(w http.ResponseWriter, x *exchange, o *outcome) (stored bool, err error) {
	o.deliver(x.values(), x.msgs, x.r.Header)
	x.confirmDelivery(w)
	after := h.opts.UpgradeAfter
	if h.opts.Response == ResponseJSON || h.opts.Stateless {
		after = 0
	}
	ctx, attended := x.r.Context(), func() {}
	if after == 0 && x.from != nil && x.once.name != "" { // it may take long
		ctx, attended = h.peers.watchRequest(ctx, x.once.name)
	}
	answers, done := o.call.Wait(ctx, after)
	left := ctx.Err() != nil
	attended()
	switch {
	case o.call.Retriable():
		return false, session.ErrMoved // and it may be made again there
	case done:
		if o.call.Method() == "initialize" {
			if revision := o.session.Revision(); revision != "" {
				w.Header()[protocol.HeaderVersion] = []string{revision}
			} else if err := o.session.Refusal(); err != nil {
				return false, err
			} else {
				w.Header().Del(protocol.HeaderSession) // it failed, and its session ends
			}
		}
		_ = h.answer(w, answers, x.batch) // what is lost on the way is lost: it is stored nowhere
		return false, nil
	case left:
		o.call.ConnectionLost()
		return false, nil
	}
	return true, nil
}

// light reports whether requests start light. Where other nodes may take the session over,
// what is not safe to make again never does, whatever form the answer has.
func (h *Handler) light(ctx context.Context, header http.Header, s *session.Session, msgs []jsonrpc.Message) bool {
	switch {
	case h.opts.Response == ResponseJSON && !h.sessions.Shared(), h.opts.Stateless:
		return true
	case h.opts.Response == ResponseSSE:
		return false
	}
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request && !s.Light(ctx, &msgs[i], header) {
			return false
		}
	}
	return true
}

// answer writes the responses of a call as JSON. A cancelled one has none.
func (h *Handler) answer(w http.ResponseWriter, answers [][]byte, batch bool) error {
	if len(answers) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	body := answers[0]
	if batch {
		body = appendAnswers(nil, answers, true)
	}
	head := w.Header()
	head["Content-Type"] = typeJSON
	head["Content-Length"] = []string{strconv.Itoa(len(body))}
	return h.finish(w, body)
}

// appendAnswers appends the responses of a light call.
func appendAnswers(text []byte, answers [][]byte, batch bool) []byte {
	if !batch {
		return append(text, answers[0]...)
	}
	for i, a := range answers {
		text = append(text, "[,"[min(i, 1)])
		text = append(text, a...)
	}
	return append(text, ']')
}

// accepts reports whether an Accept header allows a media type: what the range that
// fits it best says (RFC 9110, section 12.5.1).
func accepts(accept []string, media string) bool {
	major, _, _ := strings.Cut(media, "/")
	best, ok := 0, false
	for _, list := range accept {
		for item := range strings.SplitSeq(list, ",") {
			item, params, _ := strings.Cut(item, ";")
			item = strings.TrimSpace(item)
			fit := 0
			switch {
			case strings.EqualFold(item, media):
				fit = 3
			case strings.EqualFold(item, major+"/*"):
				fit = 2
			case item == "*/*":
				fit = 1
			}
			if fit > best {
				best, ok = fit, params == "" || !refused(params)
			}
		}
	}
	return ok
}

// refused reports whether the parameters of a media range give it no weight.
func refused(params string) bool {
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(name, "q") {
			q, err := strconv.ParseFloat(value, 64)
			return err == nil && q == 0
		}
	}
	return false
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
