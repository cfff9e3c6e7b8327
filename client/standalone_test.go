package client_test

import (
	"testing"
)

// A server may take a call's connection for lost, and continue the call on the standalone stream.
// Messages that came there are not delivered again when that connection is read after all.
func TestContinuedOnStandaloneStream(t *testing.T) {
	t.Parallel()
	for name, hello := range map[string]string{"ours": keyedGreeting, "another": greeting} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			continuedThenRead(t, hello)
		})
	}
}
