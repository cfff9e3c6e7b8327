// Package terminal shows what a server says to a person, and asks what a server wants to know.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// An Output is stdout or stderr: all that the program prints goes through one. What a
// server says may hold commands for a terminal: a terminal gets those in a form that
// shows them and does nothing. A pipe or a file gets the bytes as they are.
type Output struct {
	file *os.File
	tty  bool
	hide func(string) string // takes secrets out; nil: there can be none
}

// NewOutput returns the output to a file. Hide takes secrets out of what is written; nil:
// there are none.
func NewOutput(file *os.File, hide func(string) string) *Output {
	return &Output{file: file, tty: IsTerminal(file), hide: hide}
}

// TTY reports whether the output is a terminal.
func (o *Output) TTY() bool { return o.tty }

// Write implements io.Writer. What is written at a time is shown as a whole: it ends
// within no character.
func (o *Output) Write(p []byte) (int, error) {
	if !o.tty && o.hide == nil {
		return o.file.Write(p)
	}
	text := string(p)
	if o.hide != nil {
		text = o.hide(text)
	}
	if o.tty {
		text = visible(text)
	}
	if _, err := io.WriteString(o.file, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// control returns where commands for the terminal are written, which are ours.
func control(w io.Writer) io.Writer {
	if o, ok := w.(*Output); ok {
		return o.file
	}
	return w
}

// IsTerminal says whether a stream is a terminal, or leads to one.
func IsTerminal(stream any) bool {
	switch s := stream.(type) {
	case *Output:
		return s.tty
	case *os.File:
		return term.IsTerminal(int(s.Fd()))
	}
	return false
}

// columns is the width of a terminal.
func columns(w io.Writer) int {
	if f, ok := control(w).(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// visible is a text for a terminal, in which nothing is a command: control characters
// but for line ends and tabs, those that turn the direction of writing, and bytes that
// are not UTF-8, are shown as escapes. In JSON the characters' are JSON's own.
func visible(text string) string {
	if !strings.ContainsFunc(text, commands) && utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		i += size
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[i-1])
		case r == '\r' && strings.HasPrefix(text[i:], "\n"): // the line's end follows
		case commands(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(text[i-size : i])
		}
	}
	return b.String()
}

// commands says whether a terminal takes a character for a command, or for one to
// show others in another order.
func commands(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
