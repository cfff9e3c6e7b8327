// Package embedded runs the NATS server of a store in a directory, in this process. It is apart from package jetstream, so that a program
// with its engine elsewhere does not link a server.
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

// maxStore is how much the server may store. The streams have limits of their own. The server's default
// would be a share of the disk that is free now, and the server would not recover larger streams.
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

// start starts a server over a directory, which no other program can reach. The caller must shut the server down, also if it
// comes with an error.
func start(dir string, log jetstream.ServerLog, patience time.Duration) (jetstream.Server, error) {
	is, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "holdfast", DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, MaxPayload: maxPayload,
		JetStreamMaxStore: maxStore,
		// Our own syncer brings its files to the disk. At its own sync interval, two
		// minutes, it tidies its files up, and takes no writes meanwhile.
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

// Reopen ends the server's streams and opens them again from their files.
func (s *server) Reopen() error {
	if err := s.ShutdownJetStream(); err != nil {
		return fmt.Errorf("ending the streams: %w", err)
	}
	if err := s.EnableJetStream(&natsserver.JetStreamConfig{StoreDir: s.dir, MaxStore: maxStore}); err != nil {
		return fmt.Errorf("opening the streams: %w", err)
	}
	return nil
}
