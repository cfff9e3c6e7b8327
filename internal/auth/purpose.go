package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// This file tells access tokens from others that the same issuer signs, such as ID tokens and logout
// tokens. Those must not pass as access tokens (RFC 8725, sections 2.8 and 3.11).

// accessTypes are the types of JWTs that may be access tokens: that of RFC 9068, and "JWT", which any JWT
// may have.
var accessTypes = []string{"at+jwt", "jwt"}

// checkType returns an error if the type in a JWT's header is not an access token's (RFC 7515, section
// 4.1.9). typ is nil for a JWT without a type.
func checkType(typ any) error {
	if typ == nil {
		return nil
	}
	text, ok := typ.(string)
	name := strings.TrimPrefix(strings.ToLower(text), "application/")
	if !ok || !slices.Contains(accessTypes, name) {
		return fmt.Errorf("the token is of type %.40q, and not one for access (at+jwt)", fmt.Sprint(typ))
	}
	return nil
}

// A purpose has the claims that say what a JWT is for. A JWT may have no type in its header.
type purpose struct {
	Use    any             `json:"token_use"` // of some issuers
	Kind   any             `json:"typ"`       // of other issuers; this claim is not registered
	Events json.RawMessage `json:"events"`    // of security events (RFC 8417), such as logout tokens
}

// otherKinds are the values of the claim typ by which issuers mark tokens that are not for access.
var otherKinds = []string{"id", "id_token", "refresh", "refresh_token", "offline", "logout", "logout_token"}

// check returns an error for claims of a token that is not for access.
func (p *purpose) check() error {
	use, isText := p.Use.(string)
	kind, _ := p.Kind.(string)
	switch {
	case p.Events != nil:
		return errors.New("the token tells of events, and is not one for access")
	case p.Use != nil && (!isText || use != "access" && use != "access_token"):
		return fmt.Errorf("the token is for %.40q, and not for access", fmt.Sprint(p.Use))
	case slices.Contains(otherKinds, strings.ToLower(kind)):
		return fmt.Errorf("the token is of kind %.40q, and not one for access", kind)
	}
	return nil
}
