package jsonrpc

import "bytes"

// Each calls member for each member of a JSON object, with its unescaped name and its value
// as JSON. It reports whether data is a well-formed object. It does not change data.
func Each(data []byte, member func(name, value []byte)) bool {
	p := parser{b: data, keep: true}
	p.space()
	if p.i >= len(data) || data[p.i] != '{' {
		return false
	}
	return p.object(0, func(key []byte) error {
		from := p.i
		if err := p.value(1); err != nil {
			return err
		}
		member(key, data[from:p.i:p.i])
		return nil
	}) == nil
}

// Field returns the value at a path of names through nested objects, as JSON, or nil if
// there is none. Of members with equal names the last one counts, as in encoding/json.
// data must be well-formed; it is not changed.
func Field(data []byte, path ...string) []byte {
	for i, name := range path {
		if !mayHave(data, name) || i == 0 && len(path) > 1 && !mayHave(data, path[len(path)-1]) {
			return nil
		}
		var found []byte
		ok := Each(data, func(key, value []byte) {
			if string(key) == name {
				found = value
			}
		})
		if !ok || found == nil {
			return nil
		}
		data = found
	}
	return data
}

// mayHave reports whether a member of an object may have a name: the name is somewhere in the
// text, or may be there with escapes. Most members that are looked for are absent, and
// searching is cheaper than parsing.
func mayHave(data []byte, name string) bool {
	return bytes.Contains(data, []byte(name)) || bytes.IndexByte(data, '\\') >= 0
}

// String returns the value of a JSON string, or "" if raw is not a string.
func String(raw []byte) string {
	s, _ := unquote(raw)
	return s
}

// Set returns a copy of the object with value at a path of names. Objects on the path that
// are absent or null are made. Of members with equal names the last one is replaced, as in
// [Field]. All other bytes stay the same. Set returns data and false if data is not a
// well-formed object, if a value on the path is neither an object nor null, or if path is
// empty.
func Set(data, value []byte, path ...string) ([]byte, bool) {
	if len(path) == 0 {
		return data, false
	}
	from, to := 0, len(data) // of the object that is searched
	for n, name := range path {
		at, ok := find(data[from:to], name)
		if !ok {
			return data, false
		}
		rest := path[n+1:]
		if at.from == 0 { // no such member: add it as the object's last
			return splice(data, from+at.end, from+at.end, func(dst []byte) []byte {
				if !at.empty {
					dst = append(dst, ',')
				}
				return appendNested(append(appendString(dst, name), ':'), value, rest)
			}), true
		}
		from, to = from+at.from, from+at.to
		if len(rest) == 0 || string(data[from:to]) == "null" {
			return splice(data, from, to, func(dst []byte) []byte { return appendNested(dst, value, rest) }), true
		}
	}
	return data, false // not reached: the last name returns
}

// place is the position of a member's value in an object, if there is such a member, and of the
// closing brace.
type place struct {
	from, to int
	end      int
	empty    bool // the object has no members
}

// find looks for a member of the object that data holds.
func find(data []byte, name string) (at place, ok bool) {
	p := parser{b: data, keep: true}
	p.space()
	if p.i >= len(data) || data[p.i] != '{' {
		return at, false
	}
	at.empty = true
	err := p.object(0, func(key []byte) error {
		from := p.i
		if err := p.value(1); err != nil {
			return err
		}
		at.empty = false
		if string(key) == name {
			at.from, at.to = from, p.i
		}
		return nil
	})
	at.end = p.i - 1
	return at, err == nil
}

// splice returns data with the bytes that fill appends in the place of data[from:to].
func splice(data []byte, from, to int, fill func(dst []byte) []byte) []byte {
	dst := make([]byte, 0, len(data)+128)
	dst = fill(append(dst, data[:from]...))
	return append(dst, data[to:]...)
}

// appendNested appends value inside objects of one member each, with the names of path.
func appendNested(dst, value []byte, path []string) []byte {
	for _, name := range path {
		dst = append(appendString(append(dst, '{'), name), ':')
	}
	dst = append(dst, value...)
	return append(dst, bytes.Repeat([]byte{'}'}, len(path))...)
}
