package translate

import (
	"bytes"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// modernResult returns the result of a legacy server with the members of a modern one. It is
// not known for how long the result holds, and for whom: it is stale at once, and private.
func modernResult(method string, result, serverInfo []byte) []byte {
	var kind, ttl, scope, old []byte
	members := 0
	ok := jsonrpc.Each(result, func(name, value []byte) {
		members++
		switch string(name) {
		case "resultType":
			kind = value
		case "ttlMs":
			ttl = value
		case "cacheScope":
			scope = value
		case "_meta":
			old = value
		}
	})
	if !ok {
		return result
	}
	complete := jsonrpc.Quote(protocol.ResultComplete)
	if kind != nil && !bytes.Equal(kind, complete) { // a legacy server means something else by it
		result, _ = jsonrpc.Set(result, complete, "resultType")
	}
	if old != nil && serverInfo != nil && jsonrpc.Field(old, protocol.MetaServerInfo) == nil {
		result, _ = jsonrpc.Set(result, serverInfo, "_meta", protocol.MetaServerInfo)
	}
	end := bytes.LastIndexByte(result, '}')
	dst := append(make([]byte, 0, len(result)+len(serverInfo)+128), result[:end]...)
	add := func(name string, value []byte) {
		if members > 0 {
			dst = append(dst, ',')
		}
		members++
		dst = append(append(append(dst, jsonrpc.Quote(name)...), ':'), value...)
	}
	if kind == nil {
		add("resultType", complete)
	}
	if slices.Contains(cacheable, method) {
		if ttl == nil {
			add("ttlMs", []byte("0"))
		}
		if scope == nil {
			add("cacheScope", []byte(`"private"`))
		}
	}
	if old == nil && serverInfo != nil {
		add("_meta", protocol.AppendMember([]byte{'{'}, protocol.MetaServerInfo, serverInfo))
		dst = append(dst, '}')
	}
	return append(dst, result[end:]...)
}
