package client_test

import (
	"testing"
)

// What a server has continued on the standalone stream, because it took the call's connection
// for lost, is not delivered again when that connection is read after all.
func TestContinuedOnStandaloneStream(t *testing.T) {
	t.Parallel()
	for name, hello := range map[string]string{"ours": keyedGreeting, "another": greeting} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			continuedThenRead(t, hello)
		})
	}
}
