package protocol

import "testing"

// The table has every request of a client, of all revisions and of some extensions.
func TestRetrySafe(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		method     string
		safe       bool
		unrecorded bool
	}{
		{"initialize", true, false},
		{"ping", true, false},
		{"server/discover", true, false},
		{"tools/list", true, false},
		{"prompts/list", true, false},
		{"prompts/get", true, false},
		{"resources/list", true, false},
		{"resources/templates/list", true, false},
		{"resources/read", true, false},
		{"resources/subscribe", true, false},
		{"resources/unsubscribe", true, false},
		{"completion/complete", true, false},
		{"logging/setLevel", true, false},
		{"tasks/get", true, false},
		{"tasks/list", true, false},
		{"tasks/result", true, false},
		{"tasks/cancel", false, true},
		{"tasks/update", false, true},
		{"subscriptions/listen", true, false},
		{"requests/resume", true, false},
		{"requests/getStatus", true, false},
		{"requests/getStatus/all", true, false},
		{"tools/call", false, false},
		// A server's requests to its client are not requests to a server.
		{"sampling/createMessage", false, false},
		{"elicitation/create", false, false},
		{"roots/list", false, false},
		// Methods of vendors, and methods that do not exist.
		{"vendor/charge", false, false},
		{"charge", false, false},
		{"", false, false},
		{"TOOLS/LIST", false, false},
		{"tools/list ", false, false},
		{"tools/list/all", false, false},
	} {
		if got := RetrySafe(test.method, nil); got != test.safe {
			t.Errorf("%q: safe: %v", test.method, got)
		}
		if got := Unrecorded(test.method); got != test.unrecorded {
			t.Errorf("%q: unrecorded: %v", test.method, got)
		}
		asked := false
		got := RetrySafe(test.method, func() bool { asked = true; return true })
		if tool := test.method == MethodCallTool; asked != tool || got != (test.safe || tool) {
			t.Errorf("%q, with a safe tool: safe: %v; the tool was asked about: %v", test.method, got, asked)
		}
	}
	if RetrySafe(MethodCallTool, func() bool { return false }) {
		t.Error("a tool that is not safe is")
	}
}
