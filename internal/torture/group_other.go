//go:build !unix

package torture

import "os/exec"

func ownGroup(*exec.Cmd) {}

// killAll kills the server. What it has started sees the end of its stdin.
func killAll(server *exec.Cmd) { _ = server.Process.Kill() }
