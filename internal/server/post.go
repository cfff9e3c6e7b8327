package server

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"

	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// post takes messages from the client (2025-11-25, Transports, "Sending Messages
// to the Server").
func (h *Handler) post(w http.ResponseWriter, r *http.Request) {
	msgs, batch, ok := h.messages(w, r)
	if !ok || !h.version(w, r) {
		return
	}
	requests := 0
	for i := range msgs {
		if msgs[i].Kind == jsonrpc.Request {
			requests++
		}
	}
	if h.opts.Stateless {
		h.stateless(w, r, msgs, batch, requests)
		return
	}
	if !batch && h.ours(&msgs[0]) {
		h.postOurs(w, r, msgs)
		return
	}
	if requests == 0 {
		if msgs, ok = h.roamed(w, r, msgs); !ok {
			return
		}
	}
	if initializes(msgs) && r.Header[protocol.HeaderSession] == nil {
		if err := checkMessages(msgs, batch, stageNew, ""); err != nil {
			h.fail(w, err)
			return
		}
		h.initialize(w, r, msgs)
		return
	}
	s, err := h.named(r)
	if err == nil {
		err = h.give(w, r, s, msgs, batch, requests)
	}
	if err != nil {
		h.giveElsewhere(w, r, s, err, msgs, batch, requests)
	}
}

// giveElsewhere goes on with a POST that [Handler.give] has not answered, because of err.
// It is a function of its own so that the stack of a call that waits stays small.
//
//go:noinline
func (h *Handler) giveElsewhere(w http.ResponseWriter, r *http.Request, s *session.Session, err error, msgs []jsonrpc.Message, batch bool, requests int) {
	again := func(s *session.Session) error { return h.give(w, r, s, msgs, batch, requests) }
	key, _ := keyOf(r, msgs)
	h.chase(w, r, errand{msgs: msgs, batch: batch, keyed: key != ""}, s, err, again)
}

// give gives a session what was POSTed to it, and answers, unless there is an error.
func (h *Handler) give(w http.ResponseWriter, r *http.Request, s *session.Session, msgs []jsonrpc.Message, batch bool, requests int) error {
	revision := ""
	if batch {
		revision = s.Revision()
	}
	if err := checkMessages(msgs, batch, stageOpen, revision); err != nil {
		return err
	}
	if requests == 0 {
		return h.take(w, r, s, msgs)
	}
	once, err := h.onceOf(r, msgs)
	if err != nil {
		return errf(codeInvalid, "%v", err)
	}
	return h.call(w, r, s, msgs, batch, once)
}

// onceOf returns under what name the requests of a POST run once.
func (h *Handler) onceOf(r *http.Request, msgs []jsonrpc.Message) (once runOnce, err error) {
	if v := h.visit(r); v != nil {
		once.name, once.again = v.Once, v.Again
	}
	once.key, err = keyOf(r, msgs)
	return once, err
}

// messages reads the body of a POST. If it is not what it should be the request
// is answered, and ok is false.
func (h *Handler) messages(w http.ResponseWriter, r *http.Request) (msgs []jsonrpc.Message, batch, ok bool) {
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
	}
	return msgs, batch, err == nil
}

// take hands over notifications and responses, which have no answer.
func (h *Handler) take(w http.ResponseWriter, r *http.Request, s *session.Session, msgs []jsonrpc.Message) error {
	err := h.send(r, s, msgs)
	if err == nil {
		w.WriteHeader(http.StatusAccepted)
	}
	return err
}

// send hands over notifications and responses. A response that the backend does
// not take now has to be sent again, and so has all that comes to a session which
// is no longer here, or whose backend cannot be opened for now: that is an error.
func (h *Handler) send(r *http.Request, s *session.Session, msgs []jsonrpc.Message) error {
	ctx := context.WithoutCancel(r.Context())
	for i := range msgs {
		err := s.Send(ctx, msgs[i], r.Header)
		if errors.Is(err, session.ErrNotDelivered) || errors.Is(err, session.ErrMoved) || errors.Is(err, session.ErrBusy) {
			return err
		}
		if err != nil {
			h.logger.Warn("message not delivered", "session", s.Name(), "method", msgs[i].Method, "error", err)
		}
	}
	return nil
}

// initialize begins a session.
func (h *Handler) initialize(w http.ResponseWriter, r *http.Request, msgs []jsonrpc.Message) {
	s := h.beginSession(w, r, h.sessions.New, false, errand{msgs: msgs})
	if s == nil {
		return
	}
	w.Header()[protocol.HeaderSession] = []string{s.ID()}
	if err := h.call(w, r, s, msgs, false, runOnce{}); err != nil {
		h.fail(w, err)
	}
	if s.Revision() != "" {
		return
	}
	if c := s.Initializing(); c == nil || r.Context().Err() != nil {
		// It failed, or its client has gone without knowing the session.
		h.sessions.End(s)
	}
}

// call answers requests: with JSON while their call is light, else with a stream.
func (h *Handler) call(w http.ResponseWriter, r *http.Request, s *session.Session, msgs []jsonrpc.Message, batch bool, once runOnce) error {
	x := record{msgs: msgs, batch: batch}
	var err error
	x.begun, err = h.begin(s, msgs, once.key == "" && h.light(r.Context(), r.Header, s, msgs), once)
	switch {
	case err != nil:
		return err
	case x.number == 0:
		return h.answerLight(w, r, &x)
	case h.opts.Response == ResponseJSON && once.key == "":
		return h.plain(w, r, &x)
	case x.call != nil:
		return h.stream(w, r, x.call, msgs, batch, true)
	}
	return h.attach(w, r, x.session, x.number)
}

// answerLight answers requests whose call is light with JSON, or, if it is stored
// before it ends, with its stream.
func (h *Handler) answerLight(w http.ResponseWriter, r *http.Request, x *record) error {
	x.deliver(context.WithoutCancel(r.Context()), x.msgs, r.Header)
	after := h.opts.UpgradeAfter
	if h.opts.Response == ResponseJSON || h.opts.Stateless {
		after = 0
	}
	answers, done := x.call.Wait(r.Context(), after)
	switch {
	case x.call.Retriable():
		return session.ErrMoved // and it may be made again there
	case done:
		if x.call.Method() == "initialize" {
			if revision := x.session.Revision(); revision != "" {
				w.Header()[protocol.HeaderVersion] = []string{revision}
			} else {
				w.Header().Del(protocol.HeaderSession) // it failed, and its session ends
			}
		}
		_ = h.answer(w, answers, x.batch) // what is lost on the way is lost: it is stored nowhere
	case r.Context().Err() != nil:
		x.call.ConnectionLost()
	default:
		return h.stream(w, r, x.call, x.msgs, x.batch, false)
	}
	return nil
}

// beginSession begins a session, on this node or, if that takes on nothing new, on
// another, which then answers the request. If it returns nil the request is
// answered.
func (h *Handler) beginSession(w http.ResponseWriter, r *http.Request, open opening, single bool, e errand) *session.Session {
	s, err := h.newSession(r, open, single)
	if errors.Is(err, session.ErrClosing) && h.peers != nil {
		_, err = h.reach(w, r, e)
	}
	if err != nil && !errors.Is(err, errAnswered) {
		h.failErrand(w, err, &e)
	}
	return s
}

// An opening begins a session: [session.Manager.New] for an initialize request, and
// [session.Manager.Reserve] where that is still to come.
type opening func(r *http.Request, principal string, single bool) (*session.Session, error)

// newSession begins a session on this node. The error is ErrClosing while it is
// drained.
func (h *Handler) newSession(r *http.Request, open opening, single bool) (*session.Session, error) {
	if h.isDraining() {
		return nil, session.ErrClosing
	}
	return open(r, h.principal(r), single)
}

// light says whether requests start light. Where other nodes may take the session over,
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

// accepts says whether an Accept header allows a media type: what the range that
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

// refused says whether the parameters of a media range give it no weight.
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
