package holdfast

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// tokenUser returns the user that the go-sdk's auth middleware has authenticated, or "".
func tokenUser(r *http.Request) string {
	if t := auth.TokenInfoFromContext(r.Context()); t != nil {
		return t.UserID
	}
	return ""
}

// packToken encodes the auth.TokenInfo of a request, which the go-sdk's auth middleware has
// put into its context, for another node. It returns nil if there is none.
func packToken(ctx context.Context) []byte {
	t := auth.TokenInfoFromContext(ctx)
	if t == nil {
		return nil
	}
	text, err := json.Marshal(t)
	if err != nil { // because of the values that a verifier put into Extra
		bare := *t
		bare.Extra = nil
		text, _ = json.Marshal(&bare)
	}
	return text
}

// unpackToken returns the request with the auth.TokenInfo that packToken encoded in its context.
// Only the middleware of the go-sdk can put it there, so unpackToken calls that middleware with a
// verifier that accepts any token.
func unpackToken(r *http.Request, data []byte) *http.Request {
	t := new(auth.TokenInfo)
	if json.Unmarshal(data, t) != nil {
		return r
	}
	expires := t.Expiration
	verify := func(context.Context, string, *http.Request) (*auth.TokenInfo, error) {
		t.Expiration = time.Time{} // the time may pass on the way
		return t, nil
	}
	authenticated := r
	take := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
	carrier := r.Clone(r.Context())
	carrier.Header = http.Header{"Authorization": {"Bearer verified"}}
	take(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { authenticated = authenticated.WithContext(r.Context()) })).
		ServeHTTP(nowhere{}, carrier)
	t.Expiration = expires
	return authenticated
}

// nowhere is an [http.ResponseWriter] that discards everything.
type nowhere struct{}

func (nowhere) Header() http.Header            { return http.Header{} }
func (nowhere) WriteHeader(int)                {}
func (nowhere) Write(text []byte) (int, error) { return len(text), nil }
