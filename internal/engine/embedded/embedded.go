// Package embedded runs the NATS server of a store in a directory, in this process. It is apart from package jetstream, so that a program
// whose engine is elsewhere does not link a server.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
)

// maxPayload is the size of the largest message.
const maxPayload = 8 << 20

// maxStore is how much the server may store. The streams' own limits hold; the server's would be a
// share of what is free now, and refuse to take up again what is larger.
const maxStore = 1 << 60

// Open is [jetstream.Open] that takes the URL of a directory, file:DIR, too.
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	return jetstream.OpenWith(ctx, rawURL, o, start)
}

// A server is a [jetstream.Server].
type server struct {
	*natsserver.Server
	dir string
}

// start starts a server over a directory, which no other program can reach. The caller must shut down what is returned, also
// with an error.
func start(dir string, log jetstream.ServerLog, patience time.Duration) (jetstream.Server, error) {
	is, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "holdfast", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, MaxPayload: maxPayload,
		JetStreamMaxStore: maxStore,
		// What it writes is brought to the disk by a syncer of ours. At its own interval,
		// which is two minutes, it tidies its files up, and nobody can write meanwhile.
	})
	if err != nil {
		return nil, err
	}
	is.SetLoggerV2(log, false, false, false)
	is.Start()
	s := &server{is, dir}
	if err := log.Fatal(); err != nil {
		return s, err
	}
	if !is.ReadyForConnections(patience) {
		return s, errors.New("the server does not start")
	}
	return s, nil
}

// Reopen ends the server's streams and opens them again, with what their files have.
func (s *server) Reopen() error {
	if err := s.ShutdownJetStream(); err != nil {
		return fmt.Errorf("ending the streams: %w", err)
	}
	if err := s.EnableJetStream(&natsserver.JetStreamConfig{StoreDir: s.dir, MaxStore: maxStore}); err != nil {
		return fmt.Errorf("opening the streams: %w", err)
	}
	return nil
}
