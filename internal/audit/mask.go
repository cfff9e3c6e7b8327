package audit

import (
	"bytes"
	"regexp"

	"holdfast/jsonrpc"
)

// sealed matches texts that are enough to get the result of a call: the handle of a hand-off, the id of a task, a resume
// token (ticket.Maker).
var sealed = regexp.MustCompile(`(^|[^A-Za-z0-9_-])[A-Za-z0-9_-]{16}\.[A-Za-z0-9_-]{16}[0-9a-z]{1,13}([^A-Za-z0-9_-]|$)`)

const mask = "***"

// masked returns JSON, which may be cut, with such texts masked in its strings, also if they have escapes. It may
// return raw itself.
func masked(raw []byte) []byte {
	var out []byte // nil: all of raw up to done
	done := 0
	for at := 0; ; {
		begin := bytes.IndexByte(raw[at:], '"')
		if begin < 0 {
			break
		}
		begin += at
		at = afterString(raw, begin)
		text := raw[begin:at]
		if bytes.IndexByte(text, '\\') >= 0 {
			if plain := jsonrpc.String(text); plain != "" {
				text = []byte(plain)
			}
		} else {
			text = bytes.Trim(text, `"`)
		}
		if bytes.IndexByte(text, '.') < 0 || !sealed.Match(text) {
			continue
		}
		for sealed.Match(text) { // two texts may share the character between them
			text = sealed.ReplaceAll(text, []byte("${1}"+mask+"${2}"))
		}
		out = append(append(out, raw[done:begin]...), jsonrpc.Quote(string(text))...)
		done = at
	}
	if out == nil {
		return raw
	}
	return append(out, raw[done:]...)
}

// afterString returns the end of the string that begins at an index, or of raw if the string is cut.
func afterString(raw []byte, begin int) int {
	for i := begin + 1; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(raw)
}
