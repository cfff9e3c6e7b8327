package main

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"time"
)

// launcherVariable has the process id of a parent: this program ends when that does. The script of the npm package sets it, if
// this program is its child, or if npx runs it.
const launcherVariable = "HOLDFAST_LAUNCHER"

// withLauncher returns a context that ends when that parent does, as on SIGTERM: a script that is killed cannot pass that on, and
// this program would keep the port.
func withLauncher(ctx context.Context) context.Context {
	pid, err := strconv.Atoi(os.Getenv(launcherVariable))
	_ = os.Unsetenv(launcherVariable) // it is not for the servers that this program starts
	if err != nil || pid <= 0 {
		return ctx
	}
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer end()
		if runtime.GOOS == "windows" { // where a process keeps the id of a parent that has ended
			if p, err := os.FindProcess(pid); err == nil {
				_, _ = p.Wait()
			}
			return
		}
		for os.Getppid() == pid {
			time.Sleep(launcherEvery)
		}
	}()
	return ctx
}

// launcherEvery is how often this program looks whether its parent is there.
const launcherEvery = 500 * time.Millisecond
