package auth

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// What follows tells tokens for access from others that the same issuer signs, such as ID tokens and logout
// tokens. None of those may be used in place of one (RFC 8725, sections 2.8 and 3.11).

// accessTypes are the types of JWTs that are tokens for access: those of RFC 9068, and "JWT", which says
// nothing.
var accessTypes = []string{"at+jwt", "jwt"}

// checkType returns an error for a JWT whose header has another type (RFC 7515, section 4.1.9). nil: it has
// none.
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

// A purpose is what the claims of a JWT say of what it is for, which may have no type.
type purpose struct {
	Use    any             `json:"token_use"` // of some issuers
	Kind   any             `json:"typ"`       // of others; no claim that is registered
	Events json.RawMessage `json:"events"`    // of security events (RFC 8417), such as logout tokens
}

// otherKinds are what issuers call tokens that are not for access, where they say so in a claim.
var otherKinds = []string{"id", "id_token", "refresh", "refresh_token", "offline", "logout", "logout_token"}

// check returns an error for a token that is not for access.
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
