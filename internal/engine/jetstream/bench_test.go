package jetstream_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	natsjs "github.com/nats-io/nats.go/jetstream"

	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
)

// BenchmarkAppend compares an append with its one part that reaches a server: a publish with the same
// header, over a connection to the same server. Each session has one append in flight.
func BenchmarkAppend(b *testing.B) {
	for _, e := range []struct {
		name string
		url  func(b *testing.B) string
	}{
		{"file", func(b *testing.B) string { return "file:" + b.TempDir() }},
		{"cluster", func(b *testing.B) string { return natstest.Cluster(b).URL() }},
	} {
		b.Run(e.name, func(b *testing.B) {
			l := must(b, e.url(b))
			defer l.Close()
			js := mcptest.Must(natsjs.New(jetstream.Conn(l), natsjs.WithDefaultTimeout(2*time.Second)))(b)
			for _, sessions := range []int{1, 64, 256} {
				b.Run(strconv.Itoa(sessions), func(b *testing.B) {
					b.Run("bare", func(b *testing.B) { measure(b, sessions, bare(js)) })
					b.Run("log", func(b *testing.B) { measure(b, sessions, l.Append) })
				})
			}
		})
	}
}

type appendFunc func(ctx context.Context, key string, last uint64, frame []byte) (uint64, error)

func bare(js natsjs.JetStream) appendFunc {
	return func(ctx context.Context, key string, last uint64, frame []byte) (uint64, error) {
		m := &nats.Msg{Subject: "holdfast.ev." + key, Data: frame, Header: nats.Header{
			natsjs.ExpectedLastSubjSeqHeader: {strconv.FormatUint(last, 10)},
		}}
		for {
			ack, err := js.PublishMsg(ctx, m)
			if err == nil {
				return ack.Sequence, nil
			}
			var api *natsjs.APIError
			if !errors.As(err, &api) || api.ErrorCode != 10164 { // the append before it is in flight
				return 0, err
			}
		}
	}
}

// measure measures appends of 256 bytes.
func measure(b *testing.B, sessions int, add appendFunc) {
	frame := make([]byte, 256)
	logtest.Measure(b, sessions, func(session string) func() error {
		var last uint64
		return func() (err error) {
			last, err = add(context.Background(), "b"+session, last, frame)
			return err
		}
	})
}
