package followcall

import "testing"

// A server's request that the client does not support is refused. A ping is answered.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for request, want := range map[string]string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`:                     `{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","id":"a","method":"sampling/createMessage"}`: `{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"holdfast cannot do sampling/createMessage"}}`,
	} {
		if got := Refusal(mustParse([]byte(request))); string(got.Raw) != want {
			t.Errorf("%s: %s; want %s", request, got.Raw, want)
		}
	}
}
