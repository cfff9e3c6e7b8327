package jetstream_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/jetstream/natstest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/stream/streamtest"
)

func TestMain(m *testing.M) {
	natstest.Main()
	appender()
	atOnce := testlong.Either(8, 2) // more starve the three servers of a cluster, under the race detector above all
	if testlong.Race {
		atOnce = 2
	}
	testlong.AtOnce(atOnce)
	goleak.VerifyTestMain(m, natstest.Left()...)
}

// quiet is for engines whose trouble is meant.
var quiet = slog.New(slog.DiscardHandler)

// What holds for every engine holds for one on disk in this process.
func TestFile(t *testing.T) {
	t.Parallel()
	logtest.Run(t, func(t *testing.T) func() durable.Log {
		dir := filepath.Join(t.TempDir(), "new")
		return func() durable.Log { return patient(must(t, "file:"+dir)) }
	}, logtest.RunOptions{OneNode: true, Reopen: true})
}

// And for a cluster that keeps all three times, and for stores over it.
func TestCluster(t *testing.T) {
	if !testlong.Race {
		testlong.Only(t, "it takes 5 s beside TestFile, which has the same suite")
	}
	t.Parallel()
	s := natstest.Cluster(t)
	t.Run("log", func(t *testing.T) {
		t.Parallel()
		logtest.Run(t, func(t *testing.T) func() durable.Log {
			return func() durable.Log { return patient(must(t, s.URL())) }
		}, logtest.RunOptions{Reopen: true})
	})
	t.Run("store", func(t *testing.T) {
		testlong.Only(t, "it takes more than 10 s")
		t.Parallel()
		streamtest.Run(t, stores(func(*testing.T) string {
			return s.URL() + "?prefix=" + strings.ToLower(rand.Text()) // cases keep for different times
		}), streamtest.Options{Nodes: true, Durable: true})
	})
}

// patient returns a log that lets the suite, which asks for much at once, not run into
// what is meant for engines in trouble.
func patient(l durable.Log) durable.Log {
	jetstream.Patient(l, 15*time.Second, 15*time.Second)
	return l
}

// must opens an engine that somebody else closes.
func must(t testing.TB, url string) durable.Log {
	t.Helper()
	return mcptest.Must(embedded.Open(context.Background(), url, durable.Options{Logger: quiet}))(t)
}
