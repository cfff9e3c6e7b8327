package rpc

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"holdfast/jsonrpc"
)

// Parse parses what a server has written: one message, or a batch. Beside what [jsonrpc.ParseBody] takes it takes a byte
// order mark, text in another encoding than UTF-8, and control characters in strings: the official clients read such a
// message, or their runtime does. Each byte that is not UTF-8 becomes U+FFFD. The errors are those of
// [jsonrpc.ParseBody].
func Parse(data []byte) ([]jsonrpc.Message, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(data) > 0 && data[0] == '{' { // without the slice that ParseBody makes for a batch
		m, err := jsonrpc.Parse(data)
		if err == nil {
			return []jsonrpc.Message{m}, nil
		}
		if !errors.Is(err, jsonrpc.ErrParse) {
			return nil, err
		}
	}
	msgs, _, err := jsonrpc.ParseBody(data)
	if errors.Is(err, jsonrpc.ErrParse) {
		if mended, ok := mend(data); ok {
			msgs, _, err = jsonrpc.ParseBody(mended)
		}
	}
	return msgs, err
}

// mend returns a text in UTF-8, with control characters in strings as escapes. It reports whether that is another
// one.
func mend(text []byte) (mended []byte, changed bool) {
	inside := false // a string
	from := 0       // what is not yet in mended
	replace := func(i, n int, with string) {
		mended = append(append(mended, text[from:i]...), with...)
		from, changed = i+n, true
	}
	for i := 0; i < len(text); {
		c := text[i]
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && n == 1 {
				replace(i, 1, "\uFFFD")
			}
			i += n
			continue
		case c == '"':
			inside = !inside
		case !inside:
		case c == '\\':
			i++ // what follows is no quote
		case c < 0x20:
			replace(i, 1, control(c))
		}
		i++
	}
	if !changed {
		return nil, false
	}
	return append(mended, text[from:]...), true
}

// control returns the escape of a control character.
func control(c byte) string {
	const hex = "0123456789abcdef"
	return string([]byte{'\\', 'u', '0', '0', hex[c>>4], hex[c&0xf]})
}
