package merge

import (
	"encoding/json"

	"holdfast/jsonrpc"
)

// A union unites the objects of several servers. Objects in it are united member by member, arrays have the elements
// of all, each once, and a boolean is true if it is at any server. Else the first server's value counts, but null, with which
// some servers write a member that they lack, counts only if no server has another value. The work is linear in the size of
// the objects: below [mostLevels] nothing is united.
type union struct {
	level  int
	names  []string
	values map[string]*united
}

// united is one value of several servers.
type united struct {
	level    int
	first    []byte
	object   *union            // of several objects, else nil
	elements []json.RawMessage // of several arrays, else nil
	known    map[string]bool   // the elements that are there
}

// mostLevels bounds the depth of the objects that are united.
const mostLevels = 16

// add adds a member.
func (u *union) add(name string, value []byte) {
	if was := u.values[name]; was != nil {
		was.add(value)
		return
	}
	if u.values == nil {
		u.values = make(map[string]*united)
	}
	u.names = append(u.names, name)
	u.values[name] = &united{level: u.level, first: value}
}

// addAll adds the members of an object.
func (u *union) addAll(object []byte) {
	jsonrpc.Each(object, func(name, value []byte) { u.add(string(name), value) })
}

// add adds a value of another server.
func (v *united) add(value []byte) {
	switch {
	case len(v.first) == len("null") && string(v.first) == "null":
		v.first = value
	case v.level == mostLevels:
	case v.first[0] == '{' && value[0] == '{':
		if v.object == nil {
			v.object = &union{level: v.level + 1}
			v.object.addAll(v.first)
		}
		v.object.addAll(value)
	case v.first[0] == '[' && value[0] == '[':
		if v.known == nil {
			v.known = make(map[string]bool)
			v.addElements(v.first)
		}
		v.addElements(value)
	case string(v.first) == "false" && string(value) == "true":
		v.first = value
	}
}

func (v *united) addElements(array []byte) {
	var all []json.RawMessage
	_ = json.Unmarshal(array, &all) // it was parsed before
	for _, e := range all {
		if !v.known[string(e)] {
			v.known[string(e)] = true
			v.elements = append(v.elements, e)
		}
	}
}

// text returns the object.
func (u *union) text() []byte { return u.append(nil) }

func (u *union) append(dst []byte) []byte {
	dst = append(dst, '{')
	for i, name := range u.names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, jsonrpc.Quote(name)...), ':')
		dst = u.values[name].append(dst)
	}
	return append(dst, '}')
}

func (v *united) append(dst []byte) []byte {
	switch {
	case v.object != nil:
		return v.object.append(dst)
	case v.known == nil:
		return append(dst, v.first...)
	}
	return appendArray(dst, v.elements)
}

// appendArray appends an array. Its elements stay unchanged.
func appendArray(dst []byte, elements []json.RawMessage) []byte {
	dst = append(dst, '[')
	for i, e := range elements {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, e...)
	}
	return append(dst, ']')
}
