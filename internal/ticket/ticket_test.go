package ticket

import "testing"

// Two purposes.
const token, asked = "holdfast resume token", "holdfast request id"

// FuzzSealed tries texts that name a session: a text is accepted only if the session
// has made it, and only for its purpose.
func FuzzSealed(f *testing.F) {
	const name, secret = "0123456789abcdef", "secret"
	f.Add(string(Maker{name, secret}.Append(nil, token, 1, []byte("1"))), "1")
	f.Add(string(Maker{name, secret}.Append(nil, asked, 36, nil)), "")
	f.Add(name+"."+StreamName(secret, 7), `"a"`)
	f.Fuzz(func(t *testing.T, text, id string) {
		got, ok := Parse(text)
		if !ok {
			return
		}
		for _, purpose := range []string{token, asked} {
			made := string(Maker{name, secret}.Append(nil, purpose, got.Number, []byte(id)))
			good := got.Session == name && got.IsFrom(secret, purpose, []byte(id))
			if good != (text == made) {
				t.Fatalf("%q for %q: %v, but %q was made", text, id, good, made)
			}
		}
	})
}

// After names a place, and proves nothing.
func TestAfter(t *testing.T) {
	const name = "0123456789abcdef"
	place, ok := Parse(After(name))
	if !ok || place.Session != name || place.Number != 1<<64-1 || place.IsFrom("secret", token, nil) {
		t.Errorf("%+v %v", place, ok)
	}
	if !Is(After(name)) || Is("x."+StreamName("secret", 1)) || Is(name) {
		t.Error("what has the form of a ticket is not known")
	}
}
