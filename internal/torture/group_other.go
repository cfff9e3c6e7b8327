//go:build !unix

package torture

import "os/exec"

func ownGroup(*exec.Cmd) {}

// killAll kills the server. Processes that the server has started only see the end of their stdin.
func killAll(server *exec.Cmd) { _ = server.Process.Kill() }
