package terminal

import (
	"io"
	"os"
)

// A Style says how a text is shown on a terminal that has colours.
type Style string

// Bold is for texts that a reader looks for. Styles are parameters of the terminal command SGR.
const Bold Style = "1"

// Styled reports whether texts on w may have styles: on a terminal, unless NO_COLOR or CLICOLOR=0 is set, and elsewhere with CLICOLOR_FORCE.
func Styled(w io.Writer) bool {
	set := func(name string) bool { return os.Getenv(name) != "" && os.Getenv(name) != "0" }
	switch {
	case os.Getenv("NO_COLOR") != "":
		return false
	case set("CLICOLOR_FORCE"):
		_, shown := w.(*Output) // and not text that is put together
		return shown
	}
	return IsTerminal(w) && os.Getenv("CLICOLOR") != "0" && os.Getenv("TERM") != "dumb"
}

// Print writes a text in a style, where there are styles.
func (s Style) Print(w io.Writer, text string) error {
	if !Styled(w) {
		_, err := io.WriteString(w, text)
		return err
	}
	if _, err := io.WriteString(control(w), "\033["+string(s)+"m"); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	if _, reset := io.WriteString(control(w), "\033[0m"); err == nil {
		err = reset
	}
	return err
}
