package terminal

import (
	"bytes"
	"io"
	"testing"
)

// If the output is no terminal, each step is one line, also if the server's text has
// line breaks. Escape sequences are unchanged here: an Output makes them visible.
func TestDisplay(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := NewDisplay(&out)
	d.Wait("nothing")
	d.Progress(Step{Progress: 1, Total: 4})
	d.Progress(Step{Progress: 0.5, Message: "half\r\n\x1b[31m done\u202e"})
	d.Pause()
	d.Printf("log: %s", "it")
	d.Resume()
	d.Close()
	if got, want := out.String(), "progress 1/4\nprogress 0.5 half \x1b[31m done\u202e\nlog: it\n"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
}

// A display can be paused and resumed until it is closed.
func TestDisplayModes(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	d := NewDisplay(&out)
	d.tty = true // lines are held back while it is paused, as on a terminal
	for _, step := range []struct {
		do      func()
		mode    mode
		written string
	}{
		{d.Resume, showing, "a\n"},
		{d.Pause, paused, "a\n"},
		{d.Pause, paused, "a\n"},
		{d.Resume, showing, "a\na\na\na\n"},
		{d.Close, closed, "a\na\na\na\na\n"},
		{d.Pause, closed, "a\na\na\na\na\na\n"},
		{d.Resume, closed, "a\na\na\na\na\na\na\n"},
		{d.Close, closed, "a\na\na\na\na\na\na\na\n"},
	} {
		step.do()
		d.Printf("a")
		if d.mode != step.mode || out.String() != step.written {
			t.Errorf("mode %d, written %q; want %d, %q", d.mode, out.String(), step.mode, step.written)
		}
	}
}

// The progress bar ends with the display.
func TestDisplayCloses(t *testing.T) {
	t.Parallel()
	d := NewDisplay(io.Discard)
	d.tty = true
	d.Progress(Step{Progress: 1, Total: 2})
	d.Close()
	d.Close()
	d.Progress(Step{Progress: 2, Total: 2})
	if d.bar != nil {
		t.Error("there is a bar again")
	}
}
