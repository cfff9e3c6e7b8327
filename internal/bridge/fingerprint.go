package bridge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"strconv"
	"strings"

	"holdfast/jsonrpc"
)

// A fingerprint identifies the content of a request: two requests with the same fingerprint ask
// for the same. It is a part of [sessionRecord] and [callRecord].
type fingerprint struct {
	// Same is the hash of the method and of the parameters without _meta. Hosts put data
	// into _meta that differs from request to request, also if they repeat one.
	Same string `json:"same,omitempty"`
	// Old is the hash that builds without Same compare. It leaves out only the members of
	// _meta that are in oldVolatile.
	Old string `json:"print"`
}

// matches reports whether two requests ask for the same. Records of older builds have no
// Same.
func (f fingerprint) matches(other fingerprint) bool {
	if f.Same != "" && other.Same != "" {
		return f.Same == other.Same
	}
	return f.Old == other.Old
}

// isZero reports whether there is no fingerprint.
func (f fingerprint) isZero() bool { return f.Old == "" }

// fingerprintOf returns the fingerprint of a request. The order of members and the spelling
// of numbers and strings make no difference.
func fingerprintOf(method string, params []byte) fingerprint {
	same := canonical(without(params, "_meta"))
	if len(same) == 0 {
		same = []byte("{}") // no parameters are the same as an empty object
	}
	return fingerprint{Same: hashOf(method, same), Old: oldHash(method, params)}
}

func hashOf(method string, params []byte) string {
	sum := sha256.Sum256(append([]byte(method+"\n"), params...))
	return hex.EncodeToString(sum[:])
}

// oldVolatile are the members of _meta that older builds leave out.
var oldVolatile = []string{"progressToken", "traceparent", "tracestate", "baggage"}

// oldHash is [fingerprint.Old].
func oldHash(method string, params []byte) string {
	for _, name := range oldVolatile {
		params = withoutIn(params, "_meta", name)
	}
	text, err := json.Marshal(decode(params)) // with its members in order
	if err != nil {
		text = params
	}
	return hashOf(method, text)
}

// decode decodes a JSON value. Numbers keep their spelling. It returns nil for a text that is
// not JSON, and ignores any text after the value.
func decode(raw []byte) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	_ = d.Decode(&v)
	return v
}

// canonical returns one text for all spellings of a JSON value. Members are sorted by name;
// 1, 1.0 and 10e-1 are one number. A text that is not JSON is returned unchanged.
func canonical(raw []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return raw
	}
	if _, err := d.Token(); err != io.EOF {
		return raw
	}
	text, err := json.Marshal(canonicalNumbers(v))
	if err != nil {
		return raw
	}
	return text
}

func canonicalNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = canonicalNumbers(v[name])
		}
	case []any:
		for i := range v {
			v[i] = canonicalNumbers(v[i])
		}
	case json.Number:
		return canonicalNumber(string(v))
	}
	return v
}

// canonicalNumber returns a number as an integer that does not end in 0, and an exponent.
// The number may have any size: it is not computed.
func canonicalNumber(s string) json.Number {
	digits, power, _ := strings.Cut(strings.ToLower(s), "e")
	exponent := 0
	if power != "" {
		var err error
		if exponent, err = strconv.Atoi(power); err != nil {
			return json.Number(s) // beyond the numbers that programs compute with
		}
	}
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	short := strings.TrimRight(digits, "0")
	if short == "" {
		return "0"
	}
	return json.Number(sign + short + "e" + strconv.Itoa(exponent-len(fraction)+len(digits)-len(short)))
}

// without returns a JSON object without one of its members.
func without(object []byte, name string) []byte {
	if jsonrpc.Field(object, name) == nil {
		return object
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return object
	}
	delete(members, name)
	text, err := json.Marshal(members)
	if err != nil {
		return object
	}
	return text
}

// withoutIn returns a JSON object without a member of its member parent. If parent is _meta
// and then empty, it is removed too.
func withoutIn(object []byte, parent, name string) []byte {
	inner := jsonrpc.Field(object, parent)
	if jsonrpc.Field(inner, name) == nil {
		return object
	}
	inner = without(inner, name)
	if parent == "_meta" && string(inner) == "{}" {
		return without(object, parent)
	}
	if text, ok := jsonrpc.Set(object, inner, parent); ok {
		return text
	}
	return object
}
