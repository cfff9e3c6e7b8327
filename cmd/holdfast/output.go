package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"holdfast/internal/redact"
)

// An output is stdout or stderr: all that the program prints goes through one. What a
// server says may hold commands for a terminal: a terminal gets those in a form that
// shows them and does nothing. A pipe or a file gets the bytes as they are.
type output struct {
	file *os.File
	tty  bool
	tell func(string) string // takes secrets out; nil: there can be none
}

// outputs returns stdout and stderr. Stderr, where errors and the log go, has none of
// the passwords that the command line and the environment give.
func outputs(args []string) (stdout, stderr *output) {
	stdout, stderr = newOutput(os.Stdout), newOutput(os.Stderr)
	stderr.tell = given(args, os.Environ()).Text
	return stdout, stderr
}

func newOutput(file *os.File) *output {
	return &output{file: file, tty: isTerminal(file)}
}

// Write implements io.Writer. What is written at a time is shown as a whole: it ends
// within no character.
func (o *output) Write(p []byte) (int, error) {
	if !o.tty && o.tell == nil {
		return o.file.Write(p)
	}
	text := string(p)
	if o.tell != nil {
		text = o.tell(text)
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
	if o, ok := w.(*output); ok {
		return o.file
	}
	return w
}

// isTerminal says whether a stream is a terminal, or leads to one.
func isTerminal(stream any) bool {
	switch s := stream.(type) {
	case *output:
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

// given returns the secrets of the URLs that the command line and the environment may
// hold, wherever they stand: a URL where another flag's value was meant is as secret.
func given(args, environ []string) *redact.Secrets {
	urls := args
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "HOLDFAST_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			urls = append(urls[:len(urls):len(urls)], value)
		}
	}
	return redact.Of(urls, "creds", "ca", "cert", "key")
}
