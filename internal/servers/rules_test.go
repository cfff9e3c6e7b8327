package servers

import (
	"testing"

	"holdfast/internal/config"
	"holdfast/jsonrpc"
)

// The completion of a resource goes to the server unchanged, also if its reference has a name that says nothing. A prompt has the
// server's prefix.
func TestCompletionOfResource(t *testing.T) {
	t.Parallel()
	prefix := "x/"
	conf := &config.Server{Settings: config.Settings{Prefix: &prefix}}
	for ref, want := range map[string]string{
		`{"type":"ref/resource","uri":"a://{b}"}`:             `{"type":"ref/resource","uri":"a://{b}"}`,
		`{"type":"ref/resource","uri":"a://{b}","name":null}`: `{"type":"ref/resource","uri":"a://{b}","name":null}`,
		`{"type":"ref/resource","uri":"a://{b}","name":""}`:   `{"type":"ref/resource","uri":"a://{b}","name":""}`,
		`{"type":"ref/prompt","name":"x/greet"}`:              `{"type":"ref/prompt","name":"greet"}`,
		`{"type":"ref/prompt","name":"greet"}`:                "",
		`{"type":"ref/prompt","name":""}`:                     "",
	} {
		m, refused := ruledRequest(conf, jsonrpc.Message{Kind: jsonrpc.Request, ID: []byte("1"), Method: "completion/complete", Params: []byte(`{"ref":` + ref + `}`)})
		got := string(jsonrpc.Field(m.Params, "ref"))
		if refused != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%s: %s, %v; want %s", ref, got, refused, want)
		}
	}
}
