package webhook_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/webhook"
)

// A handler with completion webhooks, which may also go to the operator's own network.
func ExampleOptions() {
	secret, err := webhook.ParseSecret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") // from the environment, not the source
	if err != nil {
		fmt.Println(err)
		return
	}
	intranet, err := webhook.ParseAllowed("10.0.0.0/8")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "greeter", Version: "1.0.0"}, nil)
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Webhooks: &webhook.Options{Secret: secret, Allow: []webhook.Allowed{intranet}},
	})
	fmt.Println(secret, handler.Shutdown(context.Background()))
	// Output: whsec_(hidden) <nil>
}
