package login

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

const deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

// client returns the identity of the client at an authorization server, and registers it if necessary. redirect is the URL that the browser comes
// back to; "": none.
func (s *Source) client(ctx context.Context, at *issuer, redirect string) (identity, error) {
	switch {
	case s.opts.ClientID != "":
		return identity{ID: s.opts.ClientID, Redirect: redirect}, nil
	case s.opts.Way == Credentials:
		return identity{}, errors.New("a login without a user needs --client-id, and --client-secret-file or --client-key")
	case s.opts.ClientMetadata != "" && at.ClientIDMetadataDocumentSupported:
		return identity{ID: s.opts.ClientMetadata, Method: methodNone, Redirect: redirect}, nil
	case at.RegistrationEndpoint == "":
		return identity{}, fmt.Errorf("the authorization server %s registers no clients by itself: register one there, for the redirect URI %s, and give --client-id", at.Issuer, redirect)
	}
	meta := &oauthex.ClientRegistrationMetadata{
		ClientName: "Holdfast", RedirectURIs: []string{redirect}, TokenEndpointAuthMethod: methodNone,
		GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, ApplicationType: "native",
	}
	if at.device != "" {
		meta.GrantTypes = append(meta.GrantTypes, deviceGrant)
	}
	if methods := at.TokenEndpointAuthMethodsSupported; len(methods) > 0 && !slices.Contains(methods, methodNone) {
		meta.TokenEndpointAuthMethod = methodPost
		if slices.Contains(methods, methodBasic) {
			meta.TokenEndpointAuthMethod = methodBasic
		}
	}
	got, err := oauthex.RegisterClient(ctx, at.RegistrationEndpoint, meta, s.http)
	if err != nil && at.guessed {
		s.opts.Logger.Debug("no login is offered", "error", registrationText(err))
		return identity{}, ErrNone
	}
	if err != nil {
		return identity{}, fmt.Errorf("the authorization server %s does not register holdfast: %s: give --client-id for a client that is registered there", at.Issuer, oneLine(err.Error()))
	}
	method := got.TokenEndpointAuthMethod
	if method == "" {
		method = meta.TokenEndpointAuthMethod
	}
	return identity{ID: got.ClientID, Secret: got.ClientSecret, Method: method, Redirect: redirect}, nil
}

// registrationText returns the text of an error, without the body of an answer, in which there may be a secret.
func registrationText(err error) string {
	if said, ok := errors.AsType[*oauthex.ClientRegistrationError](err); ok {
		return oneLine(said.ErrorCode + " " + said.ErrorDescription)
	}
	if in := outOfReach(errors.Unwrap(err)); in != nil {
		return oneLine(in.Error())
	}
	text, _, _ := strings.Cut(err.Error(), ": ")
	return oneLine(text)
}

// CheckCallback returns an error if a URL cannot be [Options.Callback].
func CheckCallback(raw string) error {
	u, err := url.Parse(raw)
	if raw != "" && (err != nil || !loopback(u) || u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "") {
		return errors.New("want a URL of this machine, as http://127.0.0.1:8976/callback")
	}
	return nil
}

// listen listens for the browser that comes back: at the address of a redirect URI that is registered, if that is free, or at another. It returns
// the redirect URI.
func (s *Source) listen(ctx context.Context, registered string) (net.Listener, string, error) {
	host, path := "127.0.0.1:0", "/callback"
	if u, err := url.Parse(s.opts.Callback); s.opts.Callback != "" && err == nil {
		host, path = u.Host, u.Path
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "0")
		}
	}
	var config net.ListenConfig
	if u, err := url.Parse(registered); registered != "" && err == nil && s.opts.Callback == "" {
		if l, err := config.Listen(ctx, "tcp", u.Host); err == nil {
			return l, registered, nil
		}
	}
	l, err := config.Listen(ctx, "tcp", host)
	if err != nil {
		return nil, "", fmt.Errorf("the browser cannot come back to %s: %w: give another --callback", host, err)
	}
	name, _, _ := net.SplitHostPort(host)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return l, "http://" + net.JoinHostPort(name, port) + path, nil
}
