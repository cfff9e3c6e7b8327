package auth

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
)

// TestStaticKeys has the keys of a file, and changes the file.
func TestStaticKeys(t *testing.T) {
	t.Parallel()
	ada, first, err := NewKey("ada", "mcp")
	if err != nil {
		t.Fatal(err)
	}
	bob, second, err := NewKey("bob")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		mcptest.Check(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("# who may\n\n" + first + "\n" + second + "\n")
	keys := mcptest.Must(OpenKeys(file))(t)
	p := &Policy{Keys: keys, Scopes: []string{"mcp"}}
	h := Require(func(*http.Request) *Policy { return p }, nil)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(Principal(r)))
	}))
	call := func(token string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	if w := call(ada); w.Code != http.StatusOK || w.Body.String() != "key:ada" {
		t.Errorf("a key: %d %s", w.Code, w.Body)
	}
	if w := call(bob); w.Code != http.StatusForbidden {
		t.Errorf("a key without the scope: %d", w.Code)
	}
	for _, wrong := range []string{ada + "x", ada[:len(ada)-1], strings.Fields(first)[1], "hf_", "a.b.c"} {
		w := call(wrong)
		if c := w.Header().Get("WWW-Authenticate"); w.Code != http.StatusUnauthorized || !strings.HasPrefix(c, `Bearer error="invalid_token"`) {
			t.Errorf("%q: %d %q", wrong, w.Code, c)
		}
	}
	changed := func(text string) {
		write(text)
		if keys.Reload(false) {
			t.Error("at the first look the file may be half of what is being written")
		}
		keys.Reload(false)
	}
	changed("wrong")
	if w := call(ada); w.Code != http.StatusOK {
		t.Errorf("with a file that is wrong: %d", w.Code)
	}
	changed(second + " mcp\n")
	if a, b := call(ada), call(bob); a.Code != http.StatusUnauthorized || b.Code != http.StatusOK {
		t.Errorf("withdrawn: %d, changed: %d", a.Code, b.Code)
	}
	write("")
	keys.Reload(false)
	write(second + " mcp\n")
	for range 2 {
		if keys.Reload(false) {
			t.Error("a file that was written again in place is a change")
		}
	}
	for _, name := range []string{"", "a b", "#a", "a\n"} {
		if _, _, err := NewKey(name); err == nil {
			t.Errorf("the name %q is accepted", name)
		}
	}
}
