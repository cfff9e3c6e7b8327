package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/embedded"
	"holdfast/internal/mcptest"
)

// ownMounts is set in a process of this test that may mount file systems. No other process sees them.
const ownMounts = "HOLDFAST_TEST_MOUNTS"

// When the disk of an engine in this process was full and has room again, the engine goes on by itself,
// with all acknowledged frames. The log has one line for each.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getenv(ownMounts) == "" {
		inOwnMounts(t)
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""); err != nil {
		t.Fatal("mount: ", err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=128m"); err != nil {
		t.Fatal("mount: ", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error("umount: ", err)
		}
	}()
	var said lines
	url := "file:" + filepath.Join(dir, "store") + "?sync=always"
	l := mcptest.Must(embedded.Open(t.Context(), url, durable.Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}))(t)
	defer closed(t, l)
	at := map[string]uint64{}
	kept := map[string]uint64{}
	add := func(key string) error {
		last, err := l.Append(t.Context(), key, at[key], bytes.Repeat([]byte(key), 1000))
		if err == nil {
			at[key] = last
			kept[key]++
		}
		return err
	}
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		return l.Ping(ctx)
	}
	want := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for round := range 2 {
		want("before", add("a"))
		want("before", add("b"))
		want("before", ping())
		fill(t, dir, 20<<20)
		want("nearly full", ping())
		if !crowded(l) {
			t.Error("nearly full: something more may begin")
		}
		want("nearly full: what has begun goes on", add("a"))
		if round == 1 { // in this round nothing notices that the disk was full
			empty(t, dir)
		} else {
			fill(t, dir, 0)
			until(t, func() error { // until the last page is full, too
				if err := add("a"); err == nil {
					return errors.New("still room")
				}
				return nil
			})
			if ping() == nil {
				t.Error("full: it is not said")
			}
			empty(t, dir)
		}
		until(t, ping)
		if crowded(l) {
			t.Error("with room again: nothing more may begin")
		}
		want("with room again", add("a"))
		want("with room again", add("b"))
		for key, n := range kept {
			if got := count(t, l, key); got != n {
				t.Errorf("%s: %d frames, want %d", key, got, n)
			}
		}
		if full, back := said.take("is full"), said.take("has room again"); full != 1 || back != 1 {
			t.Errorf("said %d times that it is full, and %d times that it goes on", full, back)
		}
		if rest := said.rest(); rest != "" {
			t.Errorf("said more: %s", rest)
		}
	}
}

// inOwnMounts runs a test again in a process that has mounts of its own.
func inOwnMounts(t *testing.T) {
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	c.Env = append(os.Environ(), ownMounts+"=1")
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if os.Getuid() == 0 { // root needs no other namespace for that
		c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	}
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
	case !errors.As(err, &exit), strings.Contains(string(out), "mount: "):
		t.Skipf("this machine does not let it mount: %v %s", err, out)
	default:
		t.Fatalf("%v\n%s", err, out)
	}
}

func crowded(l durable.Log) bool { return l.(interface{ Crowded() bool }).Crowded() }

// fill fills a disk until only least bytes are free.
func fill(t *testing.T, dir string, least int64) {
	t.Helper()
	f := mcptest.Must(os.OpenFile(filepath.Join(dir, "ballast"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	defer f.Close()
	for size := int64(1 << 20); size >= 1<<12; size /= 4 {
		for {
			var disk syscall.Statfs_t
			mcptest.Check(t, syscall.Statfs(dir, &disk))
			if int64(disk.Bavail)*int64(disk.Bsize) < least+size { //nolint:unconvert // their types differ between systems
				break
			}
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
}

func empty(t *testing.T, dir string) {
	t.Helper()
	mcptest.Check(t, os.Remove(filepath.Join(dir, "ballast")))
}

// lines is a log.
type lines struct {
	mu  sync.Mutex
	all []string
}

var _ io.Writer = (*lines)(nil)

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

// take removes the lines that contain a text, and returns their number.
func (l *lines) take(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var rest []string
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		} else {
			rest = append(rest, line)
		}
	}
	l.all = rest
	return n
}

// rest removes all lines, and returns them.
func (l *lines) rest() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := strings.Join(l.all, "")
	l.all = nil
	return all
}
