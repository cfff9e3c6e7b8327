package rpc

import (
	"bytes"
	"strings"

	"holdfast/jsonrpc"
)

// A scanner finds messages in a text that does not parse: of JSON it knows only strings and the nesting of braces.
// The text may come in several lines.
type scanner struct {
	depth   int
	mark    byte // the quote of the string that is being read: " or '
	inside  bool // a string
	before  bool // the line has text before the message
	escaped bool
	word    []byte // the string, number or name that is being read at depth 1
	value   bool   // word is a member's value
	key     string // of that member

	at    try // the message that is being read
	tries []try
}

// A try is a text that tries to be a message: the names of its members, and its id.
type try struct {
	version, method, outcome bool
	other                    bool   // it has a name that no message has
	before                   bool   // it has text before it in its line
	id                       []byte // as raw JSON; nil if it has none that could be read
	named                    bool   // it has an id, which may be null
	twice                    bool   // it has two ids
}

// isAnswer reports whether the try is at a response. A line of a log may be or contain JSON: so a try without "jsonrpc"
// must have an id and only names of responses, and a try with it, after other text, at least the name "id". A copy of a
// request has no outcome.
func (t *try) isAnswer() bool {
	switch {
	case t.method && !t.outcome:
		return false
	case t.version:
		return t.named || t.outcome && !t.before
	}
	return t.id != nil && t.outcome && !t.other && !t.method
}

// begun reports whether a message has begun and not ended.
func (s *scanner) begun() bool { return s.depth > 0 }

// answer reports whether one of the tries is at a response, and returns the ids that could be read in such tries.
func (s *scanner) answer() (answer bool, ids [][]byte) {
	look := func(t *try) {
		if t.isAnswer() {
			answer = true
			if t.id != nil {
				ids = append(ids, t.id)
			}
		}
	}
	for i := range s.tries {
		look(&s.tries[i])
	}
	if s.begun() {
		at := s.at
		if !s.inside {
			at.id = s.idOf(at.id) // the id may be the last word of the text
		}
		look(&at)
	}
	return answer, ids
}

// take reads a line.
func (s *scanner) take(line []byte) {
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case s.depth == 0:
			if c == '{' && opens(line[i+1:]) {
				s.depth, s.at = 1, try{before: s.before}
				s.value, s.inside, s.word = false, false, s.word[:0]
			}
			s.before = s.before || c > ' ' && c != '{' && c != '['
		case s.inside && s.escaped:
			s.escaped = false
			s.add(c)
		case s.inside && c == '\\':
			s.escaped = true
			s.add(c)
		case s.inside && c == s.mark:
			s.add(c)
			s.inside = false
		case s.inside:
			s.add(c)
		case c == '"' || c == '\'':
			s.mark, s.inside = c, true
			if s.depth == 1 {
				s.word = s.word[:0]
			}
			s.add(c)
		default:
			s.plain(c)
		}
	}
	if s.inside && s.mark == '\'' {
		s.inside = false // it was an apostrophe
	}
	s.before = false
}

// opens reports whether the text after a brace can be the inside of an object: a name, which may be without quotes, as
// Node's console.log prints it; or the end of the line.
func opens(rest []byte) bool {
	rest = bytes.TrimLeft(rest, " \t\r")
	if len(rest) == 0 || rest[0] == '"' || rest[0] == '\'' {
		return true
	}
	name := bytes.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_$")
	return len(name) < len(rest) && bytes.HasPrefix(bytes.TrimLeft(name, " "), []byte(":"))
}

// plain reads a character outside of strings.
func (s *scanner) plain(c byte) {
	switch c {
	case '{', '[':
		s.end()
		s.depth++
	case '}', ']':
		s.end()
		if s.depth--; s.depth == 0 {
			s.tries = append(s.tries, s.at)
		}
	case ':':
		if s.depth == 1 && !s.value {
			s.name()
		}
	case ',':
		s.end()
	case ' ', '\t', '\r', '\n':
	default:
		s.add(c)
	}
}

// add adds a character to the word that is being read.
func (s *scanner) add(c byte) {
	if s.depth == 1 && len(s.word) <= jsonrpc.MaxName {
		s.word = append(s.word, c)
	}
}

// name notes that the word was the name of a member.
func (s *scanner) name() {
	s.key, s.value = string(bytes.Trim(s.word, `"'`)), true
	s.word = s.word[:0]
	switch s.key {
	case "jsonrpc":
		s.at.version = true
	case "method":
		s.at.method = true
	case "result", "error":
		s.at.outcome = true
	case "id":
		s.at.twice = s.at.named
		s.at.named = true
	case "params":
	default:
		s.at.other = true
	}
}

// end ends a member's value.
func (s *scanner) end() {
	if s.depth != 1 {
		return
	}
	s.at.id = s.idOf(s.at.id)
	s.value, s.word = false, s.word[:0]
}

// idOf returns the id that was read before, if any, or else the word, if that is an id.
func (s *scanner) idOf(before []byte) []byte {
	switch {
	case before != nil, s.depth != 1, !s.value, s.key != "id", len(s.word) == 0:
		return before
	case !strings.ContainsRune("\"'-0123456789", rune(s.word[0])): // such as null or NaN
		return before
	case s.word[0] == '\'':
		return jsonrpc.Quote(string(bytes.Trim(s.word, "'")))
	}
	return bytes.Clone(s.word)
}

// RequestID returns the id for the error that answers a text that is not a message: nil if the text is a response or a
// batch, or if its id cannot be read. answered is false for a notification, which gets no answer (JSON-RPC 2.0,
// sections 4.1 and 5).
func RequestID(text []byte) (id []byte, answered bool) {
	if text = bytes.TrimSpace(text); len(text) > 0 && text[0] == '[' {
		return nil, true
	}
	var s IDScanner
	s.Take(text)
	return s.RequestID()
}

// An IDScanner is [RequestID] for a text that comes in parts.
type IDScanner struct{ scan scanner }

// Take reads a part of the text.
func (s *IDScanner) Take(part []byte) {
	s.scan.take(part)
	s.scan.tries = s.scan.tries[:min(len(s.scan.tries), 2)] // if there are several, none counts
}

// RequestID is the function [RequestID] for all parts together. It is called once.
func (s *IDScanner) RequestID() (id []byte, answered bool) {
	t := s.only()
	switch {
	case t == nil:
		return nil, true
	case !t.named:
		return nil, !t.method
	case t.outcome && !t.method:
		return nil, true
	}
	return t.readID(), true
}

// AskedID is [RequestID] for a text of a peer that also answers, and may print: it returns nil if the text has no
// method, or has an outcome.
func AskedID(text []byte) []byte {
	var s IDScanner
	s.Take(text)
	if t := s.only(); t != nil && t.method && !t.outcome {
		return t.readID()
	}
	return nil
}

// only returns the only try in the text, or nil if it has none or several.
func (s *IDScanner) only() *try {
	all := s.scan.tries
	if s.scan.begun() {
		s.scan.at.id = s.scan.idOf(s.scan.at.id)
		all = append(all, s.scan.at)
	}
	if len(all) != 1 {
		return nil
	}
	return &all[0]
}

// readID returns the id of a try, or nil if it has none, two, or an invalid one.
func (t *try) readID() []byte {
	if t.twice || t.id == nil {
		return nil
	}
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, t.id, "x", nil))
	if err != nil {
		return nil
	}
	return m.ID
}
