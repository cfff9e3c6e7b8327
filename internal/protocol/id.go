package protocol

import (
	"slices"
	"strconv"
)

// PlainID reports whether every peer writes an id back unchanged: integers that fit a float64, and
// ASCII without escapes.
func PlainID(id []byte) bool {
	if id[0] != '"' {
		n, err := strconv.ParseInt(string(id), 10, 64)
		return err == nil && n > -1<<53 && n < 1<<53 && string(id) != "-0"
	}
	return !slices.ContainsFunc(id, func(b byte) bool { return b < ' ' || b > '~' || b == '\\' })
}
