package server

import (
	"net/http"
	"strconv"
	"strings"

	"holdfast/internal/server/answering"
	"holdfast/internal/server/exchange"
	"holdfast/internal/sse"
)

// Clients must accept both forms of an answer, JSON and a stream of events (2025-11-25, Transports, "Sending Messages to
// the Server"). Many clients that are not made with an SDK send no Accept, or name one form. They get a form that they
// accept: docs/decisions/0041-clients-as-they-are.md.

// readPost checks Accept, and reads and parses the body of a POST. If it returns false,
// the request was answered.
func (h *Handler) readPost(w http.ResponseWriter, x *exchange.Exchange) (ok bool) {
	if accept := x.HTTP.Header["Accept"]; len(accept) != 1 || accept[0] != usualAccept {
		if x.Form, ok = formOf(accept); !ok {
			h.answers.Reject(w, http.StatusNotAcceptable, errf(codeInvalid,
				"Accept must list application/json and text/event-stream, or at least one of them"))
			return false
		}
	}
	x.Msgs, x.Batch, ok = h.bodies.readMessages(w, x.HTTP)
	return ok
}

// formOf returns the form that an Accept header asks for. ok is false if it allows neither.
func formOf(accept []string) (as answering.Form, ok bool) {
	switch json, events := accepts(accept, "application/json"), accepts(accept, sse.ContentType); {
	case json && events:
		return answering.AnyForm, true
	case json:
		return answering.OnlyJSON, true
	case events:
		return answering.OnlyEvents, true
	}
	return answering.AnyForm, false
}

// usualAccept is the Accept of most clients.
const usualAccept = "application/json, text/event-stream"

// accepts reports whether a client accepts a media type. Without an Accept, or with an empty one, it accepts all (RFC
// 9110, section 12.5.1).
func accepts(accept []string, media string) bool {
	return isSilent(accept) || allows(accept, media)
}

// isSilent reports whether an Accept header is absent or empty.
func isSilent(accept []string) bool {
	for _, list := range accept {
		if strings.Trim(list, " \t,") != "" {
			return false
		}
	}
	return true
}

// allows reports whether an Accept header allows a media type. The media range
// that fits it best decides (RFC 9110, section 12.5.1).
func allows(accept []string, media string) bool {
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

// refused reports whether the parameters of a media range give it the weight 0.
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
