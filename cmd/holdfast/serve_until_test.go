package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/mcptest"
)

// A signal that is sent twice at once counts once. Another signal, or a later one, ends draining.
func TestNextSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot send itself signals there")
	}
	seen := make(chan os.Signal, 8)
	signal.Notify(seen, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(seen)
	send := func(s os.Signal) {
		t.Helper()
		self := mcptest.Must(os.FindProcess(os.Getpid()))(t)
		mcptest.Check(t, self.Signal(s))
		<-seen
	}
	first, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	send(os.Interrupt)
	<-first.Done()

	next, stopNext := untilNextSignal(first, time.Hour)
	defer stopNext()
	send(os.Interrupt)
	send(os.Interrupt)
	if next.Err() != nil {
		t.Error("the same signal at once is taken for the next")
	}
	send(syscall.SIGTERM)
	<-next.Done()

	later, stopLater := untilNextSignal(first, 0)
	defer stopLater()
	send(os.Interrupt)
	<-later.Done()

	// Draining that began without a signal ends with the first signal.
	other, cancel := context.WithCancel(context.Background())
	cancel()
	of, stopOf := untilNextSignal(other, time.Hour)
	defer stopOf()
	send(os.Interrupt)
	<-of.Done()
}
