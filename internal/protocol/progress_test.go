package protocol

import "testing"

func TestProgress(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]struct {
		token string
		value float64
		ok    bool
	}{
		`{"progressToken":"a","progress":1.5}`:       {`"a"`, 1.5, true},
		`{"progressToken":7,"progress":2,"total":3}`: {"7", 2, true},
		`{"progress":1}`:                          {},
		`{"progressToken":"a"}`:                   {},
		`{"progressToken":"a","progress":"much"}`: {},
		``: {},
	} {
		token, value, ok := Progress([]byte(params))
		if token != want.token || value != want.value || ok != want.ok {
			t.Errorf("%s: %q, %v, %v", params, token, value, ok)
		}
	}
}
