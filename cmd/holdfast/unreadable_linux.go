package main

import (
	"log/slog"
	"os"
	"syscall"
)

// beUnreadable hides the environment and memory of this program (/proc/PID/environ, mem, fd; ptrace) from programs of
// the same user, such as the servers that it starts. They may hold a store's password, tokens and keys. The kernel then
// writes no core of it; with GOTRACEBACK=crash, which asks for a core, the program stays as it is. A program of root,
// and one with CAP_SYS_PTRACE, can read it all the same; and its command line can be read by all users.
func beUnreadable() {
	if os.Getenv("GOTRACEBACK") == "crash" {
		return
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		slog.Warn("programs of the same user can read the environment of this one", "error", errno)
	}
}
