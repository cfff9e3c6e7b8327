package jsonrpc_test

import (
	"fmt"

	"holdfast/jsonrpc"
)

func ExampleParse() {
	m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"greet","arguments":{"to":"Ada"}}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Kind, m.Method, string(m.ID))
	fmt.Println(jsonrpc.String(jsonrpc.Field(m.Params, "arguments", "to")))
	fmt.Printf("%s\n", jsonrpc.AppendResult(nil, m.ID, []byte(`{"content":[]}`)))
	// Output:
	// request tools/call 7
	// Ada
	// {"jsonrpc":"2.0","id":7,"result":{"content":[]}}
}

func ExampleSet() {
	params, ok := jsonrpc.Set([]byte(`{"name":"greet"}`), []byte(`"t1"`), "_meta", "progressToken")
	fmt.Println(string(params), ok)
	// Output: {"name":"greet","_meta":{"progressToken":"t1"}} true
}
