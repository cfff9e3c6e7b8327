package rpc

import (
	"bytes"
	"errors"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"holdfast/jsonrpc"
)

// Parse parses a text of a server: one message, or a batch. Unlike [jsonrpc.ParseBody] it also accepts a byte order
// mark, text in another encoding than UTF-8, and control characters in strings: the official clients, or their runtimes,
// read such messages. Each byte that is not UTF-8 becomes U+FFFD. The errors are those of [jsonrpc.ParseBody].
func Parse(data []byte) ([]jsonrpc.Message, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if len(data) > 0 && data[0] == '{' { // saves the slice that ParseBody makes for a batch
		m, err := jsonrpc.Parse(data)
		if err == nil {
			Complete(&m)
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
	for i := range msgs {
		Complete(&msgs[i])
	}
	return msgs, err
}

// Complete gives the error of a response a code and a message of the right types (JSON-RPC 2.0, section 5.1): the official SDKs take
// no other error for an answer, and wait on. Other members of the error stay.
func Complete(m *jsonrpc.Message) {
	if m.Kind != jsonrpc.Response || m.Error == nil {
		return
	}
	given, message := jsonrpc.Field(m.Error, "code"), jsonrpc.Field(m.Error, "message")
	code := codeOf(given)
	text := len(message) > 0 && message[0] == '"'
	if text && string(code) == string(given) {
		return
	}
	e, ok := jsonrpc.Set(m.Error, code, "code")
	if ok && !text {
		e, ok = jsonrpc.Set(e, noText, "message")
	}
	if raw, set := jsonrpc.Set(m.Raw, e, "error"); ok && set {
		if whole, err := jsonrpc.Parse(raw); err == nil {
			*m = whole
		}
	}
}

// noText is the message of an error without a message.
var noText = []byte(`"the answer is an error that says nothing"`)

// codeOf returns the code of an error: an integer, which may be written as -5.0 or as "-5". Any other code becomes
// [jsonrpc.CodeServer].
func codeOf(given []byte) []byte {
	text := strings.Trim(string(given), `"`)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return strconv.AppendInt(nil, n, 10)
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.AppendInt(nil, int64(f), 10)
	}
	return strconv.AppendInt(nil, jsonrpc.CodeServer, 10)
}

// mend returns a text in UTF-8, with control characters in strings as escapes. If that does not change the text,
// it returns nil and false.
func mend(text []byte) (mended []byte, changed bool) {
	inside := false // of a string
	from := 0       // the first byte that is not in mended yet
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
			i++ // the next character is escaped: no quote ends the string there
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
