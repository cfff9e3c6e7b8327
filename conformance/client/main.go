// Command client is the client that the official MCP conformance suite tests: an official
// mcp.Client over Holdfast's transport. It plays one scenario, which the suite names in the
// environment:
//
//	client [-discover] [-connect HOLDFAST] URL
//
// With -connect it goes through 'holdfast connect', which logs in by itself, with this program as
// its browser.
//
// The suite checks the messages that it gets, never the effect of its answers in the client, and
// its exit code ignores clients that fail or crash. So the client checks the answers, and prints
// "done" in its last line on stdout if they are right, which conformance/check wants of every
// scenario.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

// patience is less than the suite's timeout of 30 s, so that a client that hangs reports where.
const patience = 20 * time.Second

func main() {
	discover := flag.Bool("discover", false, "begin as the official client does unless it is told a revision: with server/discover")
	connect := flag.String("connect", "", "go through 'holdfast connect' of this `program`")
	browse := flag.Bool("browser", false, "be a browser whose user agrees")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: client [-discover] URL")
		os.Exit(2)
	}
	if *browse {
		if err := browser(flag.Arg(0)); err != nil {
			fmt.Fprintln(os.Stderr, "conformance browser:", err)
			os.Exit(1)
		}
		return
	}
	name := os.Getenv("MCP_CONFORMANCE_SCENARIO")
	var revision string
	if !*discover {
		revision = os.Getenv("MCP_CONFORMANCE_PROTOCOL_VERSION")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	err := run(ctx, flag.Arg(0), *connect, name, revision, os.Getenv("MCP_CONFORMANCE_CONTEXT"))
	cancel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "conformance client: %q: %v\n", name, err)
		os.Exit(1)
	}
	fmt.Println("done:", name)
}

// run plays the scenario of a name. Without a revision the official client chooses how to begin.
func run(ctx context.Context, url, program, name, revision, config string) error {
	s, ok := find(name)
	if !ok {
		return errors.New("there is no such scenario")
	}
	var oauth auth.OAuthHandler
	var known credentials
	if s.authorized {
		if config != "" {
			if err := json.Unmarshal([]byte(config), &known); err != nil {
				return fmt.Errorf("context: %w", err)
			}
		}
		var err error
		if oauth, err = newOAuth(known); err != nil {
			return fmt.Errorf("OAuth: %w", err)
		}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "holdfast-conformance", Version: "1.0.0"}, s.options)
	transport := newTransport(url, oauth)
	if program != "" {
		var err error
		if transport, err = through(program, url, name, known); err != nil {
			return err
		}
	}
	session, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	if err != nil {
		if s.refuses(err) {
			return nil
		}
		return fmt.Errorf("connect: %w", err)
	}
	if s.playWith != nil {
		err = s.playWith(ctx, session, config)
	} else {
		err = s.play(ctx, session)
	}
	if closing := session.Close(); closing != nil {
		err = errors.Join(err, fmt.Errorf("close: %w", closing))
	}
	return err
}

func newTransport(url string, oauth auth.OAuthHandler) mcp.Transport {
	return holdfast.NewClientTransport(url, &holdfast.ClientOptions{OAuthHandler: oauth})
}
