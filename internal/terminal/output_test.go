package terminal

import "testing"

// TestVisible shows single characters.
func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, with\tits\nlines\r\nand ümläuts 🙂": "plain, with\tits\nlines\nand ümläuts 🙂",
		"a\rb":         `a\u000db`,
		"\x00\x1f":     `\u0000\u001f`,
		"\u0085":       `\u0085`,
		"\xff\xc2":     `\xff\xc2`,
		"\u200f\ufffd": `\u200f` + "\ufffd",
	} {
		if got := visible(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}
