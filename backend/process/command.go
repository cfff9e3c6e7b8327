package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unicode/utf8"
)

// interpreters are the programs that run scripts, by the extensions of these.
var interpreters = map[string]string{
	".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "npx tsx", ".rb": "ruby", ".php": "php",
	".sh": "sh", ".pl": "perl", ".jar": "java -jar",
}

// remedy says what to do about a program that was not found, after the error of the search. dir is the working directory
// of the server, or "".
func remedy(name, dir string, err error) string {
	at := name
	if !filepath.IsAbs(at) {
		at = filepath.Join(dir, at)
	}
	is, missing := os.Stat(at)
	by := interpreters[strings.ToLower(filepath.Ext(name))]
	plain := filepath.Base(name) == name
	switch {
	case missing == nil && by != "" && !is.IsDir():
		return fmt.Sprintf(": name the program that runs it, as in %s %s", by, name)
	case missing == nil && plain && !is.IsDir():
		return fmt.Sprintf(": it is a file here: did you mean .%c%s?", filepath.Separator, name)
	case errors.Is(err, fs.ErrPermission):
		return ": make it executable (chmod +x), or name the program that runs it"
	case errors.Is(err, syscall.EISDIR):
		return ": name a program in it"
	case strings.HasPrefix(name, "~"):
		return ": write the home directory out, as only a shell knows ~"
	case strings.ContainsAny(name, " \t"):
		return ": give the program and each argument as words of their own"
	case plain && strings.Contains(name, "="):
		return fmt.Sprintf(": to set a variable, run it by env: env %s PROGRAM ARG...", name)
	case by != "" && missing != nil:
		return fmt.Sprintf(": is the path right? A file like that is run as in %s %s", by, name)
	case plain:
		return ": is it installed, and is its name right?"
	case errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(name):
		return ": is the path right? It is one from the working directory"
	case errors.Is(err, fs.ErrNotExist):
		return ": is the path right?"
	}
	return ""
}

// longestHead is how many bytes of a program are read to see what kind of file it is.
const longestHead = 256

// checkScript returns an error for a file that the system would not run: an empty file, a text without a first line that
// names its interpreter, or one with an interpreter that cannot be found. Programs, and files that cannot be read, pass.
func checkScript(path, dir string, env []string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil //nolint:nilerr // it may be executable all the same
	}
	defer f.Close()
	head := make([]byte, longestHead)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil //nolint:nilerr // as above
	}
	head = head[:n]
	whole := n < longestHead
	line, _, ended := bytes.Cut(head, []byte("\n"))
	first, script := bytes.CutPrefix(line, []byte("#!"))
	switch {
	case n == 0:
		return errors.New("the file is empty: is it the right one?")
	case !script && isText(head, whole):
		by := interpreters[strings.ToLower(filepath.Ext(path))]
		if by == "" {
			by = "sh"
		}
		return fmt.Errorf("it is a text whose first line does not begin with #!: add that line, or name the program that runs it, as in %s %s", by, path)
	case !script, !ended && !whole:
		return nil
	case bytes.HasSuffix(first, []byte("\r")):
		return errors.New("its lines end as on Windows (CR LF), so that the interpreter in its first line is not found: save it with Unix line ends (LF)")
	}
	words := strings.Fields(string(first))
	if len(words) == 0 {
		return nil
	}
	if at := words[0]; filepath.IsAbs(at) {
		if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("its first line names the interpreter %s, which is not there: install it, or correct that line", at)
		}
	}
	if len(words) > 1 && filepath.Base(words[0]) == "env" && !strings.HasPrefix(words[1], "-") && !strings.Contains(words[1], "=") {
		if _, err := find(words[1], dir, env); errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("its first line names the interpreter %s, which is not found in $PATH: install it, or correct that line", words[1])
		}
	}
	return nil
}

// isText reports whether the first bytes of a file are text. whole says that head is the whole file.
func isText(head []byte, whole bool) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	for cut := 0; !whole && cut < utf8.UTFMax-1 && len(head) > 0 && !utf8.Valid(head); cut++ {
		head = head[:len(head)-1] // a character may be cut
	}
	return utf8.Valid(head)
}

// notRun explains the error of a program that is for another kind of machine; other errors stay as they are.
func notRun(err error) error {
	if errors.Is(err, syscall.ENOEXEC) {
		return fmt.Errorf("%w: it is no program for this kind of machine (%s/%s)", err, runtime.GOOS, runtime.GOARCH)
	}
	return err
}
