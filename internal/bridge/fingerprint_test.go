package bridge

import (
	"encoding/json"
	"testing"

	"holdfast/internal/mcptest"
)

// Requests with the same meaning have the same fingerprint, whatever is in their _meta
// and however they are spelled.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	same := []string{
		`{"name":"a","arguments":{"x":1,"y":[20]}}`,
		`{"arguments":{"y":[20], "x":1},"name":"a"}`,
		`{"_meta":{"progressToken":1},"name":"a","arguments":{"x":1,"y":[20]}}`,
		`{"_meta":{"progressToken":"z","traceparent":"00-0-0-00"},"name":"a","arguments":{"x":1,"y":[20]}}`,
		`{"_meta":{"callId":"call_1","x-codex-turn-metadata":{"turn_id":"9"}},"name":"a","arguments":{"x":1,"y":[20]}}`,
		`{"name":"a","arguments":{"x":1,"y":[20]},"_meta":{"callId":"call_2"},"_meta":{}}`,
		`{"n\u0061me":"\u0061","arguments":{"x":1.0,"y":[2e+1]}}`,
		`{"name":"a","arguments":{"x":10.0e-1,"y":[0.2E2]}}`,
	}
	for _, params := range same {
		if !fingerprintOf("m", []byte(params)).matches(fingerprintOf("m", []byte(same[0]))) {
			t.Errorf("%s asks for something else", params)
		}
	}
	for _, params := range []string{
		`{"name":"a","arguments":{"x":1,"y":["20"]}}`, `{"name":"a","arguments":{"x":1}}`, `{"name":"b","arguments":{"x":1,"y":[20]}}`,
		`{"name":"a","arguments":{"x":1,"y":[20],"_meta":{"k":1}}}`, `{"name":"a","arguments":{"x":12345678901234567890,"y":[20]}}`,
		`{"name":"a","arguments":{"x":-1,"y":[20]}}`, `{"name":"a","arguments":{"x":1,"y":["2e1"]}}`, `{"name":"a","arguments":{"x":1,"y":[200]}}`, ``,
	} {
		if fingerprintOf("m", []byte(params)).matches(fingerprintOf("m", []byte(same[0]))) {
			t.Errorf("%s asks for the same", params)
		}
	}
	if fingerprintOf("m", []byte(same[0])).matches(fingerprintOf("n", []byte(same[0]))) {
		t.Error("another method asks for the same")
	}
	for _, none := range []string{`{}`, `{"_meta":{"a":1}}`} {
		if !fingerprintOf("m", nil).matches(fingerprintOf("m", []byte(none))) {
			t.Errorf("%s asks for something else than nothing", none)
		}
	}
}

// The records of an older build have their old meaning, and an older build can read the records of this one.
func TestFingerprintBefore(t *testing.T) {
	t.Parallel()
	const before = "10ec1412e3ac764aec68d1ed182e2f77b6dee8a7c8f41e6115361a9af91ee4dc"
	var old callRecord
	mcptest.Check(t, json.Unmarshal([]byte(`{"id":"\"x-1\"","method":"tools/call","print":"`+before+`"}`), &old))
	again := []byte(`{"_meta":{"progressToken":7},"arguments":{"x":1.50},"name":"a"}`)
	if !fingerprintOf("tools/call", again).matches(old.fingerprint) {
		t.Error("the call of a build before is not found")
	}
	if fingerprintOf("tools/call", []byte(`{"arguments":{"x":2},"name":"a"}`)).matches(old.fingerprint) {
		t.Error("another call is taken for that of a build before")
	}
	text := mcptest.Must(json.Marshal(callRecord{fingerprint: fingerprintOf("tools/call", again)}))(t)
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil || members["print"] != before {
		t.Errorf("a build before reads %s (%v)", text, err)
	}
}

// Numbers of any size are compared without evaluating them.
func TestCanonicalNumber(t *testing.T) {
	t.Parallel()
	for number, want := range map[string]string{
		"0": "0", "-0.00e9": "0", "1": "1e0", "-1": "-1e0", "100": "1e2", "1.5": "15e-1", "0.0150": "15e-3", "1E+2": "1e2",
		"1e999999999": "1e999999999", "1e99999999999999999999": "1e99999999999999999999", "12345678901234567890": "1234567890123456789e1",
	} {
		if got := string(canonicalNumber(number)); got != want {
			t.Errorf("%s is %s; want %s", number, got, want)
		}
	}
}
