package terminal

import (
	"bytes"
	"testing"
)

// Where there is no terminal each step is a line, and nothing that a server says is
// taken for a command.
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
