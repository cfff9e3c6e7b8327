package protocol

import "testing"

func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		code    int
		message string
		want    bool
	}{
		{CodeOutcomeUnknown, "", true},
		{CodeOutcomeUnknown, "the wording may change", true},
		{-32000, TextOutcomeUnknown + ": of an earlier build", true},
		{-32000, "not delivered", false},
		{-32603, "internal error: " + TextOutcomeUnknown, false},
		{0, "", false},
	} {
		if got := OutcomeUnknown(test.code, test.message); got != test.want {
			t.Errorf("%d %q: %v", test.code, test.message, got)
		}
	}
}
