package jetstream_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A stream outlives the death of a server, and the server comes back, as natstest promises.
func TestKill(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB) *natstest.Servers{
		"embedded": natstest.Cluster, "processes": natstest.Processes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testlong.Only(t, "it takes seconds")
			s := start(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			nc := mcptest.Must(nats.Connect(s.URL(), nats.UserInfo(natstest.User, natstest.Password), nats.MaxReconnects(-1)))(t)
			defer nc.Close()
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "a", Subjects: []string{"a"}, Replicas: 3})
			if err != nil {
				t.Fatal(err)
			}
			i, err := s.Leader(ctx, "a")
			if err != nil || i < 0 {
				t.Fatalf("leader %d, %v", i, err)
			}
			s.Kill(i)
			publish(ctx, t, js, 1)
			mcptest.Check(t, s.Restart(i))
			publish(ctx, t, js, 2)
		})
	}
}

// publish publishes until a message is acknowledged.
func publish(ctx context.Context, t *testing.T, js jetstream.JetStream, atLeast uint64) {
	t.Helper()
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		ack, err := js.Publish(attempt, "a", nil)
		cancel()
		if err == nil && ack.Sequence >= atLeast {
			return
		}
		time.Sleep(50 * time.Millisecond) // polling: the server does not report this
	}
	t.Fatal("the stream does not come back")
}
