package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// printedMain stands for the programs that TestPrinted runs:
//
//	stdio                     an MCP server on stdio
//	holdfast PROGRAM ARG...   holdfast; its serve ends after it has answered a client
//	package PROGRAM ARG...    npx and uvx: the program holdfast, or a server
func printedMain(args []string) {
	if args[0] == "package" && args[2] != "holdfast" {
		args = []string{"stdio"}
	}
	var err error
	switch args[0] {
	case "stdio":
		err = printedServer().Run(context.Background(), &mcp.StdioTransport{})
	case "package":
		err = printedHoldfast(args[1], args[3:])
	default:
		err = printedHoldfast(args[1], args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "printed:", err)
		os.Exit(1)
	}
}

// printedServer is a reader's server: the demo, with more tools.
func printedServer() *mcp.Server {
	server := newDemo()
	safe := &mcp.ToolAnnotations{ReadOnlyHint: true}
	mcp.AddTool(server, &mcp.Tool{Name: "hello", Annotations: safe}, func(context.Context, *mcp.CallToolRequest, any) (*mcp.CallToolResult, any, error) {
		return text("hello"), nil, nil
	})
	type message struct {
		Message string `json:"message"`
	}
	mcp.AddTool(server, &mcp.Tool{Name: "echo", Annotations: safe}, func(_ context.Context, _ *mcp.CallToolRequest, in message) (*mcp.CallToolResult, any, error) {
		return text("%s", in.Message), nil, nil
	})
	return server
}

// printedHalt is the directory in that of a block that halts its calls until the block resumes one.
const printedHalt = "halt"

// printedHoldfast runs holdfast as a reader does. Serve ends after it has answered a client.
func printedHoldfast(program string, args []string) error {
	if len(args) > 0 && args[0] == "torture" {
		args = slices.Insert(args, 1, strings.Fields(os.Getenv("PRINTED_TORTURE"))...)
	}
	if len(args) > 0 && args[0] == "resume" {
		if err := os.RemoveAll(printedHalt); err != nil {
			return err
		}
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if len(args) == 0 || args[0] != "serve" {
		err := cmd.Run()
		if exit := new(exec.ExitError); errors.As(err, &exit) && exit.Exited() {
			os.Exit(exit.ExitCode())
		}
		return err
	}
	cmd.Stderr = nil
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stuck := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	defer stuck.Stop()
	err = printedServes(cmd, bufio.NewScanner(stderr))
	if err != nil {
		_ = cmd.Process.Kill()
	}
	return errors.Join(err, cmd.Wait())
}

var (
	printedURL  = regexp.MustCompile(`^Serving MCP at (\S+)`)
	printedWarn = regexp.MustCompile(`level=(WARN|ERROR)`)
)

// printedServes lets clients call a server that has been started, and ends it. A warning in its log is an error.
func printedServes(cmd *exec.Cmd, log *bufio.Scanner) error {
	var urls, warnings []string
	serving, door := false, slices.Contains(cmd.Args, "door")
	for log.Scan() {
		line := log.Text()
		fmt.Fprintln(os.Stderr, line)
		if m := printedURL.FindStringSubmatch(line); m != nil {
			urls = append(urls, m[1])
		}
		if allowed := os.Getenv("PRINTED_WARNS"); printedWarn.MatchString(line) && (allowed == "" || !regexp.MustCompile(allowed).MatchString(line)) {
			warnings = append(warnings, line)
		}
		if !serving && strings.Contains(line, "msg=serving") {
			serving = true
			for _, url := range urls {
				if err := printedAnswers(url, door); err != nil {
					return fmt.Errorf("%s: %w", url, err)
				}
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				return err
			}
		}
	}
	switch {
	case !serving:
		return errors.New("it did not serve")
	case len(warnings) > 0:
		return fmt.Errorf("it warns: %s", strings.Join(warnings, "\n"))
	}
	return log.Err()
}

// printedAnswers lets a client begin a session. A server that asks for authentication has answered, too, and so has a door without a worker.
func printedAnswers(url string, door bool) error {
	settings := &tls.Config{InsecureSkipVerify: true} // the server is on this machine, under another name
	if pair, err := tls.LoadX509KeyPair("cert.pem", "key.pem"); err == nil {
		settings.Certificates = []tls.Certificate{pair}
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: settings}, Timeout: soon}
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"reader","version":"1"}}}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusUnauthorized || door && resp.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && !bytes.Contains(body, []byte(`"serverInfo"`)) {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return err
}
