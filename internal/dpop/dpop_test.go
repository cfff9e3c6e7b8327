package dpop_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"holdfast/internal/dpop"
)

// TestExample reads the proof of RFC 9449, section 4.1. Its key has the thumbprint of section 6.1.
func TestExample(t *testing.T) {
	const text = "eyJ0eXAiOiJkcG9wK2p3dCIsImFsZyI6IkVTMjU2IiwiandrIjp7Imt0eSI6IkVDIiwieCI6Imw4dEZyaHgtMzR0VjNoUklDUkRZOXpDa0RscEJoRjQyVVFVZldWQVdCRnMi" +
		"LCJ5IjoiOVZFNGpmX09rX282NHpiVFRsY3VOSmFqSG10NnY5VERWclUwQ2R2R1JEQSIsImNydiI6IlAtMjU2In19.eyJqdGkiOiItQndDM0VTYzZhY2MybFRjIiwiaHRtIjoiUE9TVCIs" +
		"Imh0dSI6Imh0dHBzOi8vc2VydmVyLmV4YW1wbGUuY29tL3Rva2VuIiwiaWF0IjoxNTYyMjYyNjE2fQ.2-GxA6T8lP4vfrg8v-FdWP0A0zdrj8igiMLvqRMUvwnQg4PtFLbdLXiOSsX0x7NVY" +
		"-FNyJK70nfbV37xRZT3Lg"
	p, err := dpop.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if p.Key != "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I" || p.ID != "-BwC3ESc6acc2lTc" || p.Method != http.MethodPost ||
		!p.IsFor("https://server.example.com/token") || p.Issued != time.Unix(1562262616, 0) {
		t.Errorf("%+v", p)
	}
}

// TestURL has pairs of URLs that are the same for a proof, and pairs that are not.
func TestURL(t *testing.T) {
	key, err := dpop.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		says, is string
		same     bool
	}{
		{"https://a.example/mcp?x=1#y", "https://a.example/mcp", true},
		{"HTTPS://A.example:443/mcp", "https://a.example/mcp", true},
		{"http://a.example:80", "http://a.example/", true},
		{"wss://a.example/mcp", "https://a.example/mcp", true},
		{"https://a.example/m%63p", "https://a.example/mcp", true},
		{"https://a.example/x/../mcp", "https://a.example/mcp", true},
		{"http://[::1]:80/mcp", "http://[::1]/mcp", true},
		{"https://a.example/mcp", "https://b.example/mcp", false},
		{"https://a.example:444/mcp", "https://a.example/mcp", false},
		{"http://a.example/mcp", "https://a.example/mcp", false},
		{"https://a.example/mcp/other", "https://a.example/mcp", false},
		{"https://user@a.example/mcp", "https://a.example/mcp", true}, // the user is left out of a proof's URL
		{"/mcp", "https://a.example/mcp", false},
	} {
		u, err := url.Parse(c.says)
		if err != nil {
			t.Fatal(err)
		}
		text, err := key.Prove(&dpop.Request{Method: http.MethodPost, URL: u, Token: "t", At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		p, err := dpop.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if p.IsFor(c.is) != c.same || !p.Covers("t") || p.Covers("u") {
			t.Errorf("%s is for %s: %v, want %v", c.says, c.is, p.IsFor(c.is), c.same)
		}
	}
}

// TestKey has keys of each algorithm, written and read again.
func TestKey(t *testing.T) {
	u := &url.URL{Scheme: "https", Host: "a.example", Path: "/mcp"}
	for _, algorithm := range []string{"ES256", "EdDSA", "ES384", "ES512", "PS256", "RS256"} {
		first, err := dpop.NewKey([]string{"none", "HS256", algorithm}, nil)
		if err != nil {
			t.Fatalf("%s: %v", algorithm, err)
		}
		text, err := json.Marshal(first)
		if err != nil {
			t.Fatal(err)
		}
		key, err := dpop.ParseKey(text)
		if err != nil {
			t.Fatalf("%s: %v", algorithm, err)
		}
		proof, err := key.Prove(&dpop.Request{Method: http.MethodPost, URL: u, Body: []byte("body"), HasBody: true, Nonce: "n", At: time.Now()})
		if err != nil {
			t.Fatalf("%s: %v", algorithm, err)
		}
		p, err := dpop.Parse(proof)
		if err != nil {
			t.Fatalf("%s: %v", algorithm, err)
		}
		digest, err := p.Digest()
		if err != nil || p.Key != first.Thumbprint() || p.Nonce != "n" {
			t.Fatalf("%s: %+v %v", algorithm, p, err)
		}
		_, _ = digest.Write([]byte("bo"))
		if digest.Holds() {
			t.Errorf("%s: half a body will do", algorithm)
		}
		if _, _ = digest.Write([]byte("dy")); !digest.Holds() {
			t.Errorf("%s: the body will not do", algorithm)
		}
	}
	if _, err := dpop.NewKey([]string{"HS256", "none"}); err == nil {
		t.Error("a key for shared ones")
	}
	if _, err := dpop.NewKey([]string{"ES256"}, []string{"RS256"}); err == nil {
		t.Error("a key for two lists that have nothing in common")
	}
}

// FuzzParse parses any text as a proof.
func FuzzParse(f *testing.F) {
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0..")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := dpop.Parse(text)
		if err == nil && (p.Key == "" || p.ID == "") {
			t.Errorf("%+v", p)
		}
	})
}
