package jsonrpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds nesting, and with it the parser's stack. It is the depth at
// which the official go-sdk refuses a message too.
const maxDepth = 1000

// parser validates JSON text (RFC 8259). Every method leaves i after the text that it consumed.
type parser struct {
	b    []byte
	i    int
	keep bool // line breaks are left as they are
}

func (p *parser) fail(what string) error {
	if p.i >= len(p.b) {
		return fmt.Errorf("%w: ends where %s was expected", ErrParse, what)
	}
	return fmt.Errorf("%w: expected %s at byte %d", ErrParse, what, p.i)
}

// space skips white space. It replaces line breaks with spaces, unless keep is set.
func (p *parser) space() {
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t':
		case '\n', '\r':
			if !p.keep {
				p.b[p.i] = ' '
			}
		default:
			return
		}
		p.i++
	}
}

// member is one of the top-level members that JSON-RPC defines.
type member uint8

const (
	other member = iota
	version
	id
	method
	params
	result
	failure
)

func memberOf(key []byte) member {
	switch string(key) {
	case `jsonrpc`:
		return version
	case `id`:
		return id
	case `method`:
		return method
	case `params`:
		return params
	case `result`:
		return result
	case `error`:
		return failure
	}
	return other
}

// isLike reports whether a parser that does not tell upper from lower case, such as
// encoding/json, takes a name for that of a member of requests.
func isLike(key []byte) bool {
	switch len(key) { // with ſ, which folds to s, as two bytes
	case 2, 6, 7, 8:
	default:
		return false
	}
	for _, name := range [...]string{"jsonrpc", "id", "method", "params"} {
		if bytes.EqualFold(key, []byte(name)) {
			return true
		}
	}
	return false
}

// message consumes one JSON-RPC message. If any part of it is malformed, the error is ErrParse,
// whatever else is wrong.
func (p *parser) message() (Message, error) {
	start := p.i
	if p.i >= len(p.b) || p.b[p.i] != '{' {
		if err := p.value(0); err != nil {
			return Message{}, err
		}
		return Message{}, fmt.Errorf("%w: not an object", ErrInvalid)
	}
	var fields [failure + 1][]byte
	var twice, like bool
	err := p.object(0, func(key []byte) error {
		m := memberOf(key)
		like = like || m == other && isLike(key)
		from := p.i
		if err := p.value(1); err != nil {
			return err
		}
		if m != other {
			// Two parsers may disagree about which of two equal names counts.
			twice = twice || fields[m] != nil
			fields[m] = p.b[from:p.i:p.i]
		}
		return nil
	})
	if err != nil {
		return Message{}, err
	}
	switch {
	case twice:
		return Message{}, fmt.Errorf("%w: a member stands twice", ErrInvalid)
	case like:
		return Message{}, fmt.Errorf(`%w: a member differs from "jsonrpc", "id", "method" or "params" in the case of letters`, ErrInvalid)
	}
	return classify(&fields, p.b[start:p.i:p.i])
}

func classify(f *[failure + 1][]byte, raw []byte) (Message, error) {
	if string(f[version]) != `"2.0"` {
		return Message{}, fmt.Errorf(`%w: "jsonrpc" is not "2.0"`, ErrInvalid)
	}
	absent := dropNulls(f)
	m := Message{ID: f[id], Raw: raw}
	if m.ID != nil && !validID(m.ID) {
		return Message{}, fmt.Errorf(`%w: "id" is neither a string nor an integer`, ErrInvalid)
	}
	if len(m.ID) > MaxName {
		return Message{}, fmt.Errorf(`%w: "id" is longer than %d bytes`, ErrInvalid, MaxName)
	}
	switch {
	case len(f[method]) > MaxName:
		return Message{}, fmt.Errorf(`%w: "method" is longer than %d bytes`, ErrInvalid, MaxName)
	case f[method] != nil:
		if f[result] != nil || f[failure] != nil {
			return Message{}, fmt.Errorf("%w: a request with a result", ErrInvalid)
		}
		name, ok := unquote(f[method])
		if !ok {
			return Message{}, fmt.Errorf(`%w: "method" is not a string`, ErrInvalid)
		}
		if name == "" { // servers take such a message for a response, and never answer
			return Message{}, fmt.Errorf(`%w: "method" is empty`, ErrInvalid)
		}
		if f[params] != nil && f[params][0] != '{' && f[params][0] != '[' {
			return Message{}, fmt.Errorf(`%w: "params" is neither an object nor an array`, ErrInvalid)
		}
		m.Kind, m.Method, m.Params = Notification, name, f[params]
		if m.ID != nil {
			m.Kind = Request
		}
		if absent {
			m.Raw = AppendRequest(nil, m.ID, m.Method, m.Params)
		}
	case (f[result] != nil) != (f[failure] != nil):
		if m.ID == nil {
			return Message{}, fmt.Errorf("%w: a response without an id", ErrInvalid)
		}
		if f[failure] != nil && f[failure][0] != '{' {
			return Message{}, fmt.Errorf(`%w: "error" is not an object`, ErrInvalid)
		}
		m.Kind, m.Result, m.Error = Response, f[result], f[failure]
		if absent {
			m.Raw = m.WithID(m.ID)
		}
	default:
		return Message{}, fmt.Errorf("%w: neither a method, nor a result or an error", ErrInvalid)
	}
	return m, nil
}

// dropNulls removes members that are null and may be left out, as some libraries write all members of a message:
// method, params, result and error, and the id of a notification. It reports whether it removed any. The result
// of a response may be null, and stays.
func dropNulls(f *[failure + 1][]byte) (absent bool) {
	drop := func(m member) {
		if string(f[m]) == "null" {
			f[m], absent = nil, true
		}
	}
	drop(method)
	drop(params)
	drop(failure)
	if f[method] != nil || f[failure] != nil {
		drop(result)
	}
	if string(f[id]) == "null" {
		if name, ok := unquote(f[method]); ok && strings.HasPrefix(name, "notifications/") {
			drop(id)
		}
	}
	return absent
}

// validID reports whether raw is a string or an integer, as MCP requires (revision 2025-06-18, Base
// Protocol, Requests: never null). Some peers write an integer as 7.0.
func validID(raw []byte) bool {
	if raw[0] == '"' {
		return true
	}
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return false
	}
	if !bytes.ContainsAny(raw, ".eE") {
		return true
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	return err == nil && n == math.Trunc(n) && math.Abs(n) < 1<<53
}

// unquote returns the value of a JSON string that is known to be well-formed.
func unquote(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return intern(raw[1 : len(raw)-1]), true
	}
	return string(unescape(raw[1 : len(raw)-1])), true
}

// unescape returns the value of the text between the quotes of a JSON string that is known to be
// well-formed. Half of a surrogate pair becomes U+FFFD, as in encoding/json, which takes ten times as long.
func unescape(text []byte) []byte {
	dst := make([]byte, 0, len(text))
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 || i+1 >= len(text) {
			return append(dst, text...)
		}
		dst = append(dst, text[:i]...)
		c := text[i+1]
		text = text[i+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := rune4(text)
			text = text[min(4, len(text)):]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(text) >= 6 && text[0] == '\\' && text[1] == 'u' {
					low = rune4(text[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					text = text[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

// rune4 returns the rune of four hexadecimal digits, or U+FFFD.
func rune4(digits []byte) (r rune) {
	if len(digits) < 4 {
		return utf8.RuneError
	}
	for _, c := range digits[:4] {
		switch {
		case !hex(c):
			return utf8.RuneError
		case c <= '9':
			c -= '0'
		default:
			c = c | 0x20 - 'a' + 10
		}
		r = r<<4 | rune(c)
	}
	return r
}

// intern returns b as a string, without an allocation for the most frequent methods.
func intern(b []byte) string {
	switch string(b) {
	case "tools/call":
		return "tools/call"
	case "tools/list":
		return "tools/list"
	case "tasks/get":
		return "tasks/get"
	case "ping":
		return "ping"
	case "initialize":
		return "initialize"
	case "notifications/progress":
		return "notifications/progress"
	case "notifications/message":
		return "notifications/message"
	case "notifications/initialized":
		return "notifications/initialized"
	}
	return string(b)
}

// object consumes an object. member is called with each name, unescaped, when
// the cursor stands on its value, and must consume that value.
func (p *parser) object(depth int, member func(key []byte) error) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrParse, maxDepth)
	}
	p.i++ // {
	p.space()
	if p.i < len(p.b) && p.b[p.i] == '}' {
		p.i++
		return nil
	}
	for {
		from := p.i
		if err := p.str(); err != nil {
			return err
		}
		key := p.b[from+1 : p.i-1]
		if bytes.IndexByte(key, '\\') >= 0 {
			key = unescape(key)
		}
		p.space()
		if p.i >= len(p.b) || p.b[p.i] != ':' {
			return p.fail("':'")
		}
		p.i++
		p.space()
		if err := member(key); err != nil {
			return err
		}
		if done, err := p.next('}'); done || err != nil {
			return err
		}
	}
}

// members consumes an object without reporting its members.
func (p *parser) members(depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrParse, maxDepth)
	}
	p.i++ // {
	p.space()
	if p.i < len(p.b) && p.b[p.i] == '}' {
		p.i++
		return nil
	}
	for {
		if err := p.str(); err != nil {
			return err
		}
		p.space()
		if p.i >= len(p.b) || p.b[p.i] != ':' {
			return p.fail("':'")
		}
		p.i++
		p.space()
		if err := p.value(depth + 1); err != nil {
			return err
		}
		if done, err := p.next('}'); done || err != nil {
			return err
		}
	}
}

// next consumes the comma or the end after an element.
func (p *parser) next(end byte) (done bool, err error) {
	p.space()
	if p.i >= len(p.b) {
		return false, p.fail("',' or '" + string(end) + "'")
	}
	switch p.b[p.i] {
	case end:
		p.i++
		return true, nil
	case ',':
		p.i++
		p.space()
		return false, nil
	}
	return false, p.fail("',' or '" + string(end) + "'")
}

// value consumes any JSON value at the given depth.
func (p *parser) value(depth int) error {
	if p.i >= len(p.b) {
		return p.fail("a value")
	}
	switch c := p.b[p.i]; c {
	case '{':
		return p.members(depth)
	case '[':
		return p.array(depth)
	case '"':
		return p.str()
	case 't':
		return p.word("true")
	case 'f':
		return p.word("false")
	case 'n':
		return p.word("null")
	default:
		return p.number()
	}
}

func (p *parser) array(depth int) error {
	if depth >= maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrParse, maxDepth)
	}
	p.i++ // [
	p.space()
	if p.i < len(p.b) && p.b[p.i] == ']' {
		p.i++
		return nil
	}
	for {
		if err := p.value(depth + 1); err != nil {
			return err
		}
		if done, err := p.next(']'); done || err != nil {
			return err
		}
	}
}

func (p *parser) word(w string) error {
	if len(p.b)-p.i < len(w) || string(p.b[p.i:p.i+len(w)]) != w {
		return p.fail("a value")
	}
	p.i += len(w)
	return nil
}

// plain marks the bytes that stand for themselves inside a string.
var plain = func() (t [256]bool) {
	for c := 0x20; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// skip skips bytes that stand for themselves inside a string, as long as eight or more bytes are
// left.
func (p *parser) skip() {
	const (
		ones = 0x0101010101010101
		high = 0x80 * ones
	)
	for len(p.b)-p.i >= 8 {
		x := binary.LittleEndian.Uint64(p.b[p.i:])
		quote, slash := x^'"'*ones, x^'\\'*ones
		// The highest bit of each byte that is above 0x7f, below 0x20, a quote or a backslash. The
		// borrow of a subtraction only falsifies bytes after the first of them.
		found := (x | (x-0x20*ones)&^x | (quote-ones)&^quote | (slash-ones)&^slash) & high
		if found != 0 {
			p.i += bits.TrailingZeros64(found) / 8
			return
		}
		p.i += 8
	}
}

func (p *parser) str() error {
	if p.i >= len(p.b) || p.b[p.i] != '"' {
		return p.fail("a string")
	}
	p.i++
	for p.skip(); p.i < len(p.b); {
		c := p.b[p.i]
		switch {
		case plain[c]:
			p.i++
		case c == '"':
			p.i++
			return nil
		case c == '\\':
			if err := p.escape(); err != nil {
				return err
			}
			p.skip()
		case c < 0x20:
			return p.fail("no control character")
		default:
			r, n := utf8.DecodeRune(p.b[p.i:])
			if r == utf8.RuneError && n == 1 {
				return p.fail("UTF-8")
			}
			p.i += n
		}
	}
	return p.fail("'\"'")
}

func (p *parser) escape() error {
	p.i++ // backslash
	if p.i >= len(p.b) {
		return p.fail("an escape")
	}
	switch p.b[p.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		p.i++
		return nil
	case 'u':
		for n := range 4 {
			if j := p.i + 1 + n; j >= len(p.b) || !hex(p.b[j]) {
				return p.fail("four hexadecimal digits")
			}
		}
		p.i += 5
		return nil
	}
	return p.fail("an escape")
}

func hex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

func (p *parser) digits() bool {
	from := p.i
	for p.i < len(p.b) && p.b[p.i] >= '0' && p.b[p.i] <= '9' {
		p.i++
	}
	return p.i > from
}

func (p *parser) number() error {
	if p.b[p.i] == '-' {
		p.i++
	}
	if p.i < len(p.b) && p.b[p.i] == '0' {
		p.i++
	} else if !p.digits() {
		return p.fail("a value")
	}
	if p.i < len(p.b) && p.b[p.i] == '.' {
		p.i++
		if !p.digits() {
			return p.fail("a digit")
		}
	}
	if p.i < len(p.b) && p.b[p.i]|0x20 == 'e' {
		p.i++
		if p.i < len(p.b) && (p.b[p.i] == '+' || p.b[p.i] == '-') {
			p.i++
		}
		if !p.digits() {
			return p.fail("a digit")
		}
	}
	return nil
}
