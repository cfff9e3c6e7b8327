package login

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Opener returns a function that opens a URL in the user's browser: by the command in BROWSER, or by the usual one of the
// system. It returns nil where there is no browser: on a machine without a screen, or at the other end of an SSH session.
func Opener() func(url string) error {
	if command := os.Getenv("BROWSER"); command != "" {
		return func(url string) error { return openBy(command, url) }
	}
	if os.Getenv("SSH_CONNECTION") != "" {
		return nil
	}
	switch runtime.GOOS {
	case "darwin":
		return func(url string) error { return run("open", url) }
	case "windows":
		return func(url string) error { return run("rundll32", "url.dll,FileProtocolHandler", url) }
	}
	if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return nil
	}
	name, err := exec.LookPath("xdg-open")
	if err != nil {
		return nil
	}
	return func(url string) error { return run(name, url) }
}

// openBy opens a URL by the first command of a list that can be started. In a command, %s stands for the URL, which is its last
// argument otherwise.
func openBy(list, url string) error {
	err := errors.New("BROWSER is empty")
	for command := range strings.SplitSeq(list, string(os.PathListSeparator)) {
		args := strings.Fields(command)
		if len(args) == 0 {
			continue
		}
		placed := false
		for i, arg := range args {
			if i > 0 && strings.Contains(arg, "%s") {
				args[i], placed = strings.ReplaceAll(arg, "%s", url), true
			}
		}
		if !placed {
			args = append(args, url)
		}
		if err = run(args[0], args[1:]...); err == nil {
			return nil
		}
	}
	return err
}

// run starts a browser, which may outlive this process. Stdout is the host's, so a browser writes nowhere.
func run(name string, args ...string) error {
	cmd := exec.Command(name, args...)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}
