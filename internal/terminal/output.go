// Package terminal shows the texts of a server to a person, and asks its questions.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// An Output is stdout or stderr. All text that the program prints goes through an Output. Text
// of a server may have terminal commands in it: a terminal gets them as visible escapes, which
// do nothing. A pipe or a file gets the bytes as they are.
type Output struct {
	file *os.File
	tty  bool
	hide func(string) string // removes secrets; nil: there are none
}

// NewOutput returns the output to a file. hide removes secrets from the text; nil: there are
// none.
func NewOutput(file *os.File, hide func(string) string) *Output {
	return &Output{file: file, tty: IsTerminal(file), hide: hide}
}

// TTY reports whether the output is a terminal.
func (o *Output) TTY() bool { return o.tty }

// SyscallConn implements [syscall.Conn]: package bridge asks whether the output has a reader.
func (o *Output) SyscallConn() (syscall.RawConn, error) { return o.file.SyscallConn() }

// Write implements io.Writer. Each call writes whole characters.
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

// control returns the writer for terminal commands of our own.
func control(w io.Writer) io.Writer {
	if o, ok := w.(*Output); ok {
		return o.file
	}
	return w
}

// IsTerminal reports whether a stream is a terminal, or an [Output] to one.
func IsTerminal(stream any) bool {
	switch s := stream.(type) {
	case *Output:
		return s.tty
	case *os.File:
		return term.IsTerminal(int(s.Fd()))
	}
	return false
}

// columns returns the width of a terminal; 80 if it is not known.
func columns(w io.Writer) int {
	if f, ok := control(w).(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
	}
	return 80
}

// visible returns a text without terminal commands: it shows them as escapes. They are
// control characters, but for line ends and tabs; characters that change the direction of
// writing; and bytes that are not UTF-8. The escapes of characters are those of JSON.
func visible(text string) string {
	if !strings.ContainsFunc(text, isCommand) && utf8.ValidString(text) {
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
		case isCommand(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(text[i-size : i])
		}
	}
	return b.String()
}

// isCommand reports whether a character is a terminal command, or changes the order in which
// others are shown.
func isCommand(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}
