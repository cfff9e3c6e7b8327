package main

import (
	"log/slog"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells the supervisor that started this process in which state it is, as systemd asks for with Type=notify
// (sd_notify). Without such a supervisor it does nothing.
func notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		slog.Warn("the supervisor was not told its service's state", "state", state, "error", err)
	}
}
