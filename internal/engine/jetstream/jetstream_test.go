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
	atOnce := testlong.Either(8, 2) // more of them starve the three servers of a cluster, above all under the race detector
	if testlong.Race {
		atOnce = 2
	}
	testlong.AtOnce(atOnce)
	goleak.VerifyTestMain(m, natstest.Left()...)
}

// quiet is the logger of engines with provoked errors.
var quiet = slog.New(slog.DiscardHandler)

// An engine on disk in this process passes the suite of all engines.
func TestFile(t *testing.T) {
	t.Parallel()
	logtest.Run(t, func(t *testing.T) func() durable.Log {
		dir := filepath.Join(t.TempDir(), "new")
		return func() durable.Log { return patient(must(t, "file:"+dir)) }
	}, logtest.RunOptions{OneNode: true, Reopen: true})
}

// So does a cluster with three replicas, and a store over it passes the suite of stores.
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
			return s.URL() + "?prefix=" + strings.ToLower(rand.Text()) // cases have different retentions
		}), streamtest.Options{Nodes: true, Durable: true})
	})
}

// patient returns a log with long time limits: the suite makes many requests at once.
func patient(l durable.Log) durable.Log {
	jetstream.Patient(l, 15*time.Second, 15*time.Second)
	return l
}

// must opens an engine. The caller closes it.
func must(t testing.TB, url string) durable.Log {
	t.Helper()
	return mcptest.Must(embedded.Open(context.Background(), url, durable.Options{Logger: quiet}))(t)
}
