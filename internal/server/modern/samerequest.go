package modern

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"holdfast/jsonrpc"
)

// SumOf returns a hash of a request's method and params, which is the same for a request
// that is made again: without its id, its _meta and the client's input.
func SumOf(m *jsonrpc.Message) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", m.Method)
	type member struct{ name, value []byte }
	var all []member
	jsonrpc.Each(m.Params, func(name, value []byte) {
		switch string(name) {
		case "_meta", "inputResponses", "requestState":
		default:
			all = append(all, member{slices.Clone(name), value})
		}
	})
	slices.SortFunc(all, func(a, b member) int { return slices.Compare(a.name, b.name) })
	for _, p := range all {
		fmt.Fprintf(h, ",%q:%d:%s", p.name, len(p.value), p.value)
	}
	return string(h.Sum(nil))
}
