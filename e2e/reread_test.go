package e2e

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"holdfast/internal/auth"
	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// TestFilesGoWrong spoils files that the program reads again while they are in use, each in several ways: one WARN names the file
// and the error, clients are served by the content that was read before, and one INFO says that the file is right again. With
// -long the program notices the changes without SIGHUP.
func TestFilesGoWrong(t *testing.T) {
	t.Parallel()
	garble := func(name string) error { return os.WriteFile(name, []byte("\x00garbled\n"), 0o600) }
	folder := func(name string) error {
		if err := os.Remove(name); err != nil {
			return err
		}
		return os.Mkdir(name, 0o700)
	}
	another := func(text []byte) func(name string) error {
		return func(name string) error { return os.WriteFile(name, text, 0o600) }
	}
	const keys, cert, key, issuers, conf = 0, 1, 2, 3, 4
	again := "configuration read" // at SIGHUP it is read, also if it has not changed
	if testlong.Wanted() {
		again = "configuration unchanged"
	}
	ca := authtest.NewCA(t, "ca")
	otherCert, otherKey := ca.Server("other")
	_, line, err := auth.NewKey("new")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file  int
		spoil func(name string) error
		warns string
		mend  []byte // the mended content; nil: the content before
		says  string
	}{
		"keys, garbled":           {keys, garble, "keys not changed: the files are wrong", nil, "keys unchanged"},
		"keys, a hash cut short":  {keys, another([]byte(line[:len(line)-1] + "\n")), "want the SHA-256", []byte(line + "\n"), "keys read"},
		"keys, gone":              {keys, os.Remove, "no such file", nil, "keys unchanged"},
		"keys, a folder":          {keys, folder, "is a directory", nil, "keys unchanged"},
		"certificate, garbled":    {cert, garble, "certificates not changed: the files are wrong", nil, "certificates unchanged"},
		"certificate of another":  {cert, another(otherCert), "does not match", nil, "certificates unchanged"},
		"key of another":          {key, another(otherKey), "does not match", nil, "certificates unchanged"},
		"key, gone":               {key, os.Remove, "no such file", nil, "certificates unchanged"},
		"issuers, none":           {issuers, another(nil), "there is no certificate in it", nil, "certificates unchanged"},
		"configuration, garbled":  {conf, garble, "configuration not changed: the file is wrong", nil, "configuration read"},
		"configuration, no entry": {conf, another([]byte(`{}`)), "no servers", []byte(`{"mcpServers": {"a": {"command": "cat"}, "b": {"command": "cat"}}}`), "configuration read"},
		"configuration, gone":     {conf, os.Remove, "no such file", nil, again},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, line, err := auth.NewKey("ada")
			if err != nil {
				t.Fatal(err)
			}
			ownCert, ownKey := ca.Server("own")
			names := authtest.Files(t, []byte(line+"\n"), ownCert, ownKey, ca.PEM, []byte(`{"mcpServers": {"a": {"command": "cat"}}}`))
			before := mcptest.Must(os.ReadFile(names[c.file]))(t)
			args := []string{"--auth-keys", names[keys], "--config", names[conf], "--tls-cert", names[cert], "--tls-key", names[key]}
			if c.file == issuers {
				args = append(args, "--tls-client-ca", names[issuers])
			}
			p := serve(t, args...)
			said := func(what string) {
				t.Helper()
				for late := time.Now().Add(time.Minute); !strings.Contains(p.log.String(), what); time.Sleep(20 * time.Millisecond) {
					if time.Now().After(late) {
						t.Fatalf("the log does not have %q:\n%s", what, p.log.String())
					}
				}
			}
			hup := func() {
				if !testlong.Wanted() {
					p.signal(t, syscall.SIGHUP)
				}
			}
			mcptest.Check(t, c.spoil(names[c.file]))
			hup()
			said(c.warns)
			if c.file != issuers { // for issuers the log is enough: TestTLS has clients with certificates
				resp, err := ca.Browse().Get(p.URL)
				if err != nil {
					t.Fatalf("with a wrong file: %v", err)
				}
				if _ = resp.Body.Close(); resp.StatusCode != http.StatusUnauthorized {
					t.Errorf("with a wrong file: %s", resp.Status)
				}
			}
			if c.mend == nil {
				c.mend = before
			}
			_ = os.Remove(names[c.file]) // it may be a folder
			next := filepath.Join(t.TempDir(), "next")
			mcptest.Check(t, os.WriteFile(next, c.mend, 0o600))
			mcptest.Check(t, os.Rename(next, names[c.file]))
			hup()
			said("level=INFO msg=\"" + c.says)
			if err := p.stop(t); err != nil {
				t.Error(err)
			}
			log := []byte(p.log.String())
			if n := bytes.Count(log, []byte("level=WARN")) + bytes.Count(log, []byte("level=ERROR")); n != 1 ||
				!strings.Contains(lineWith(log, "level=WARN"), names[c.file]) || !strings.Contains(lineWith(log, "level=WARN"), "in use") {
				t.Errorf("%d warnings, of %s:\n%s", n, names[c.file], log)
			}
			if n := bytes.Count(log, []byte(`msg="`+c.says)); n != 1 && testlong.Wanted() {
				t.Errorf("it is told %d times that %s:\n%s", n, c.says, log)
			}
		})
	}
}

// lineWith returns the first line of a text that contains what.
func lineWith(text []byte, what string) string {
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, what) {
			return line
		}
	}
	return ""
}
