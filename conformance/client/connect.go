package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// through returns a transport over holdfast connect, which gets its tokens itself. This program is its
// browser.
func through(program, url, scenario string, known credentials) (mcp.Transport, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"connect", "--state", "", "--logins", ""}
	env := append(os.Environ(), fmt.Sprintf("BROWSER=%s -browser", self))
	switch {
	case known.ID != "" && known.Key != "":
		file := filepath.Join(filepath.Dir(self), "conformance-key-"+rand.Text())
		if err := os.WriteFile(file, []byte(known.Key), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--client-id", known.ID, "--client-key", file)
	case known.ID != "" && known.Secret != "":
		args = append(args, "--client-id", known.ID)
		env = append(env, "HOLDFAST_CLIENT_SECRET="+known.Secret)
	default:
		args = append(args, "--client-metadata", document)
	}
	if strings.HasPrefix(scenario, "auth/client-credentials-") {
		args = append(args, "--login", "credentials")
	}
	cmd := exec.Command(program, append(args, url)...)
	cmd.Env = env
	cmd.Stderr = os.Stderr
	return &mcp.CommandTransport{Command: cmd, TerminateDuration: 5 * time.Second}, nil
}

// browser follows the redirects of the authorization server.
func browser(url string) error {
	resp, err := http.Get(url) //nolint:noctx,gosec // as browsers do
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
