package exchange_test

import (
	"testing"

	"holdfast/internal/budget"
	"holdfast/internal/server/exchange"
	"holdfast/jsonrpc"
)

// TestUntakenIsBounded holds answers until there is no room for one more, by their number and by their bytes.
func TestUntakenIsBounded(t *testing.T) {
	t.Parallel()
	small := exchange.Untaken{}
	done, ok := small.Hold(&jsonrpc.Message{})
	for range exchange.MostUntaken - 1 {
		if _, more := small.Hold(&jsonrpc.Message{}); !more {
			t.Fatal("too few are held")
		}
	}
	if _, more := small.Hold(&jsonrpc.Message{}); !ok || more {
		t.Fatalf("held: the first %t, one too many %t", ok, more)
	}
	done()
	if _, more := small.Hold(&jsonrpc.Message{}); !more {
		t.Error("the place of an answer that was taken is not free")
	}

	flight := budget.NewFlight(0, 100, 1)
	large, long := exchange.Untaken{Flight: flight}, &jsonrpc.Message{Raw: make([]byte, 60)}
	done, ok = large.Hold(long)
	if _, more := large.Hold(long); !ok || more || flight.Used() != 60 {
		t.Fatalf("held: the first %t, the second %t; %d bytes", ok, more, flight.Used())
	}
	if done(); flight.Used() != 0 {
		t.Errorf("%d bytes are counted", flight.Used())
	}
}
