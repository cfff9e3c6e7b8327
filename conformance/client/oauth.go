package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const (
	// callback is the URL to which a user's browser would be sent back. It has no listener.
	callback = "http://localhost:3000/callback"
	// document is the client id that the suite knows (SEP-991). The suite does not fetch it.
	document = "https://conformance-test.local/client-metadata.json"
)

// credentials are in the context of a scenario in which the client was registered before.
type credentials struct {
	ID     string `json:"client_id"`
	Secret string `json:"client_secret"`
	Key    string `json:"private_key_pem"`
}

// newOAuth returns the official OAuth client, ready for each way to register.
func newOAuth(known credentials) (auth.OAuthHandler, error) {
	config := &auth.AuthorizationCodeHandlerConfig{
		RedirectURL:                    callback,
		AuthorizationCodeFetcher:       consent,
		ClientIDMetadataDocumentConfig: &auth.ClientIDMetadataDocumentConfig{URL: document},
		DynamicClientRegistrationConfig: &auth.DynamicClientRegistrationConfig{
			Metadata: &oauthex.ClientRegistrationMetadata{
				ClientName:   "holdfast-conformance",
				RedirectURIs: []string{callback},
			},
		},
	}
	if known.ID != "" && known.Secret != "" {
		config.PreregisteredClient = &oauthex.ClientCredentials{
			ClientID:         known.ID,
			ClientSecretAuth: &oauthex.ClientSecretAuth{ClientSecret: known.Secret},
		}
	}
	return auth.NewAuthorizationCodeHandler(config)
}

// consent acts for the user and the browser: the suite's authorization servers redirect at once,
// with the code.
func consent(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, args.URL, http.NoBody)
	if err != nil {
		return nil, err
	}
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := browser.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		return nil, fmt.Errorf("authorize: %s, which redirects nowhere: %w", resp.Status, err)
	}
	return answer(to.Query())
}

// answer reads the authorization server's answer (RFC 6749 section 4.1.2, RFC 9207).
func answer(q url.Values) (*auth.AuthorizationResult, error) {
	if q.Get("code") == "" {
		return nil, fmt.Errorf("authorize: %s: %s", q.Get("error"), q.Get("error_description"))
	}
	return &auth.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, nil
}
