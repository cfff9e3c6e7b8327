package sessionid_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/sessionid"
)

var some = sessionid.Claims{
	Began: time.Unix(1_790_000_000, 0), Server: "files", Principal: sessionid.DigestOf("ada"),
	Initialize: []byte(`{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true},"elicitation":{}},"clientInfo":{"name":"claude-code","version":"2.1.332"}}`),
}

func same(a, b *sessionid.Claims) bool {
	return a.Began.Equal(b.Began) && a.Server == b.Server && a.Principal == b.Principal && bytes.Equal(a.Initialize, b.Initialize)
}

// An id opens to the sealed claims, is visible ASCII, and is never the same twice.
func TestSeal(t *testing.T) {
	t.Parallel()
	ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	for _, c := range []sessionid.Claims{
		some,
		{Began: time.Unix(0, 0)},
		{Began: time.Unix(1, 0), Server: strings.Repeat("s", 300), Initialize: bytes.Repeat([]byte(`"x"`), 300)},
	} {
		one, two := ring.Seal(&c), ring.Seal(&c)
		if one == two {
			t.Error("two ids are the same")
		}
		if strings.ContainsFunc(one, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
			t.Errorf("%q is not visible ASCII", one)
		}
		for _, id := range []string{one, two} {
			if got, ok := ring.Open(id); !ok || !same(&got, &c) {
				t.Errorf("%+v, %t, want %+v", got, ok, c)
			}
		}
	}
	if !some.Principal.Is("ada") || some.Principal.Is("bob") || some.Principal.Is("") {
		t.Error("the principal is another")
	}
}

// An id does not open if a bit was changed, if it was cut, lengthened or spliced, or if another key sealed it.
func TestForged(t *testing.T) {
	t.Parallel()
	key := sessionid.NewKey()
	ring := sessionid.NewRing([]sessionid.Key{key})
	id := ring.Seal(&some)
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what, id string) {
		t.Helper()
		if c, ok := ring.Open(id); ok || c.Initialize != nil || c.Principal != (sessionid.Digest{}) {
			t.Errorf("%s: opens, as %+v", what, c)
		}
	}
	for i := range raw {
		for bit := range 8 {
			raw[i] ^= 1 << bit
			refused(fmt.Sprintf("byte %d, bit %d", i, bit), base64.RawURLEncoding.EncodeToString(raw))
			raw[i] ^= 1 << bit
		}
		refused(fmt.Sprintf("cut after %d", i), base64.RawURLEncoding.EncodeToString(raw[:i]))
	}
	other, _ := base64.RawURLEncoding.DecodeString(ring.Seal(&some))
	for at := 6; at < min(len(raw), len(other)); at++ {
		refused(fmt.Sprintf("spliced at %d", at), base64.RawURLEncoding.EncodeToString(append(bytes.Clone(raw[:at]), other[at:]...)))
	}
	elsewhere := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	for what, text := range map[string]string{
		"empty": "", "text": "none", "of an older build": "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "padded": id + "=", "with a space": id + " ", "doubled": id + id,
		"long": strings.Repeat("A", sessionid.MaxLen+1), "of another ring": elsewhere.Seal(&some), "in lower case": strings.ToLower(id),
	} {
		refused(what, text)
	}
	// The last base64 character has unused bits: only one of its spellings opens.
	for _, last := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" {
		if spelt := id[:len(id)-1] + string(last); spelt != id {
			refused("spelt otherwise", spelt)
		}
	}
}

// The first key seals, and all keys open, so that keys can be replaced one after the other.
func TestRotation(t *testing.T) {
	t.Parallel()
	old, now := sessionid.NewKey(), sessionid.NewKey()
	ring := sessionid.NewRing([]sessionid.Key{old})
	before := ring.Seal(&some)
	ring.Set([]sessionid.Key{now, old})
	after := ring.Seal(&some)
	for _, id := range []string{before, after} {
		if _, ok := ring.Open(id); !ok {
			t.Error("an id of a key of the ring does not open")
		}
	}
	ring.Set([]sessionid.Key{now})
	if _, ok := ring.Open(before); ok {
		t.Error("an id of a key that is gone opens")
	}
	if _, ok := ring.Open(after); !ok {
		t.Error("an id of the key that is left does not open")
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	one, two := sessionid.NewKey(), sessionid.NewKey()
	keys, err := sessionid.ParseKeys([]byte("# first\n\n" + one.Text() + "\r\n  " + strings.ToUpper(two.Text()) + "  "))
	if err != nil || len(keys) != 2 || keys[0] != one || keys[1] != two {
		t.Errorf("%v, %v", keys, err)
	}
	for _, bad := range []string{"", "# none\n", "secret", one.Text()[:63], one.Text() + "0", one.Text() + "\nsecret-of-mine", strings.Repeat("zz", 32)} {
		keys, err := sessionid.ParseKeys([]byte(bad))
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), one.Text()[:20]) || !strings.Contains(err.Error(), "openssl rand -hex 32") {
			t.Errorf("%q: %v, %v", bad, keys, err)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", one, one, one); strings.Contains(text, one.Text()[:10]) {
		t.Error("a key is printed")
	}
}

// The params of initialize are kept whole if they are short. Of long ones, the essential members are kept.
func TestFit(t *testing.T) {
	t.Parallel()
	noise := func(n int) string { // text that does not compress well
		var text strings.Builder
		for i := 0; text.Len() < n; i++ {
			fmt.Fprintf(&text, "%x", i*2654435761%1000003)
		}
		return text.String()[:n]
	}
	usual := string(some.Initialize)
	for name, c := range map[string]struct {
		params    string
		whole     bool
		has, lost []string
	}{
		"usual":                      {params: usual, whole: true},
		"long, and compressed short": {params: strings.Replace(usual, `"capabilities"`, `"_meta":{"a":"`+strings.Repeat("x", 5000)+`"},"capabilities"`, 1), whole: true},
		"_meta and icons": {
			params: `{"_meta":{"a":"` + noise(3000) + `"},"protocolVersion":"2025-11-25","capabilities":{"roots":{},"extensions":{"x/y":{"z":1}}},"clientInfo":{"name":"n","version":"1","icons":"` + noise(3000) + `"}}`,
			has:    []string{`"roots":{}`, `"name":"n"`, `"version":"1"`, `"z":1`, `2025-11-25`}, lost: []string{"_meta", "icons"},
		},
		"extensions": {
			params: `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{"tools":{}},"extensions":{"x/y":{"z":"` + noise(3000) + `"}}},"clientInfo":{"name":"n","version":"1"}}`,
			has:    []string{`"sampling":{"tools":{}}`, `"x/y":{}`}, lost: []string{`"z"`},
		},
		"many extensions": {
			params: `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"extensions":{"` + noise(3000) + `":{}}},"clientInfo":{"name":"n","version":"1"}}`,
			has:    []string{`"sampling":{}`}, lost: []string{"extensions"},
		},
		"name": {
			params: `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{}},"clientInfo":{"name":"` + noise(3000) + `","version":"1"}}`,
			has:    []string{`"sampling":{}`, noise(100)}, lost: []string{noise(200)},
		},
		"a capability": {
			params: `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{"x":"` + noise(3000) + `"}},"clientInfo":{"name":"n","version":"1"}}`,
			has:    []string{`"sampling":{}`}, lost: []string{`"x"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := string(sessionid.Fit([]byte(c.params)))
			if c.whole != (got == c.params) || !json.Valid([]byte(got)) {
				t.Errorf("got %s", got)
			}
			for _, has := range c.has {
				if !strings.Contains(got, has) {
					t.Errorf("got %s, want %s", got, has)
				}
			}
			for _, lost := range c.lost {
				if strings.Contains(got, lost) {
					t.Errorf("got %s, without %s", got, lost)
				}
			}
			ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
			claims := some
			claims.Initialize = []byte(got)
			if id := ring.Seal(&claims); len(id) > 1600 {
				t.Errorf("the id has %d characters", len(id))
			}
		})
	}
	for _, bad := range []string{``, `[]`, `{`, `"x"`} { // short, so kept
		if got := sessionid.Fit([]byte(bad)); string(got) != bad {
			t.Errorf("%s: %s", bad, got)
		}
	}
	for _, bad := range []string{`["` + noise(3000) + `"]`, `{"a":"` + noise(3000), `"` + noise(3000) + `"`, `{"protocolVersion":["` + noise(3000) + `"]}`} {
		if got := sessionid.Fit([]byte(bad)); got != nil {
			t.Errorf("%.20s: %s", bad, got)
		}
	}
}

// The id for the usual params of a host is short.
func TestLength(t *testing.T) {
	t.Parallel()
	ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	for name, params := range map[string]string{
		"bare":      `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"mcp","version":"0.1.0"}}`,
		"Claude":    string(some.Initialize),
		"Inspector": `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{},"elicitation":{},"roots":{"listChanged":true}},"clientInfo":{"name":"mcp-inspector","version":"0.17.2"}}`,
		"full": `{"protocolVersion":"2025-11-25","capabilities":{"sampling":{"context":{},"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{"listChanged":true},"tasks":{"list":{},"cancel":{},"requests":{"sampling":{"createMessage":{}},"elicitation":{"create":{}}}},` +
			`"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}}},"clientInfo":{"name":"some-host","title":"Some Host","version":"1.2.3","websiteUrl":"https://host.example.com","description":"A host that says what it is in a sentence"}}`,
	} {
		c := some
		c.Initialize = []byte(params)
		n := len(ring.Seal(&c))
		t.Logf("%s: %d characters for %d", name, n, len(params))
		if n > 420 {
			t.Errorf("%s: %d characters", name, n)
		}
	}
}

func FuzzOpen(f *testing.F) {
	key, err := sessionid.ParseKeys([]byte(strings.Repeat("0123456789abcdef", 4)))
	if err != nil {
		f.Fatal(err)
	}
	ring := sessionid.NewRing(key)
	f.Add(ring.Seal(&some))
	f.Add("")
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, id string) {
		c, ok := ring.Open(id)
		if !ok && (c.Initialize != nil || c.Server != "") {
			t.Errorf("%q does not open, and says %+v", id, c)
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	id := ring.Seal(&some)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := ring.Open(id); !ok {
			b.Fatal("it does not open")
		}
	}
}

func BenchmarkOpenForged(b *testing.B) {
	ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	id := ring.Seal(&some)
	id = id[:len(id)-3] + "AAA"
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := ring.Open(id); ok {
			b.Fatal("it opens")
		}
	}
}

func BenchmarkSeal(b *testing.B) {
	ring := sessionid.NewRing([]sessionid.Key{sessionid.NewKey()})
	b.ReportAllocs()
	for b.Loop() {
		ring.Seal(&some)
	}
}
