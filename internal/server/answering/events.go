package answering

import (
	"net/http"

	"holdfast/internal/placement"
)

// answerEvents writes responses as a complete stream of events, without ids.
func (a *Writer) answerEvents(w http.ResponseWriter, answers [][]byte) error {
	var text []byte
	for _, a := range answers {
		text = placement.AppendEvent(w, text, nil, a)
	}
	OpenEvents(w.Header())
	if to := placement.SinkOf(w); to != nil {
		return to.Write(text)
	}
	return a.Finish(w, text)
}

// OpenEvents sets the header of a stream of events.
func OpenEvents(head http.Header) {
	head["Content-Type"] = typeSSE
	head["Cache-Control"] = noCache
	head["X-Accel-Buffering"] = unbuffered // else nginx gathers events that should arrive at once
}
