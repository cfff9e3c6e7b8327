package session

import (
	"fmt"
	"strings"
	"testing"

	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
)

// If not all questions of a round can be asked, the call fails, and none of them takes the room of later ones.
func TestRoundTooLarge(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	r := newRequest()
	client := h.ClientOf(r, caller.Principal{}, caller.Credential{})
	s, err := h.Carrier(r, &client, protocol.V20260728, `,{"elicitation":{}}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Release()
	task := mcptest.Parse(request(1))
	c := begin(t, s, false, request(1))
	if _, err := s.NameCall(c.Number(), &task, nil); err != nil {
		t.Fatal(err)
	}
	var questions []string
	for i := range mostServerRequests + 1 {
		questions = append(questions, fmt.Sprintf(`"q%d":{"method":"elicitation/create","params":{}}`, i))
	}
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"input_required","inputRequests":{`+strings.Join(questions, ",")+`}}}`)
	if said := readAll(t, s, c.Number()); len(said) != 1 || !strings.Contains(said[0], `"error"`) {
		t.Errorf("the call has said %.200q", said)
	}
	if n := s.asked.len(); n != 0 {
		t.Errorf("%d questions wait for an answer, and no client was asked", n)
	}
}
