// Package config reads the configuration files of MCP hosts: Claude Desktop, Claude Code,
// Cursor, Windsurf, the Gemini CLI and others ("mcpServers"), VS Code ("servers" and "inputs"),
// Zed ("context_servers"), opencode ("mcp") and Amp ("amp.mcpServers"). Beside the members of hosts, a file may have a member "holdfast" with settings of our own.
//
// Files are JSON with comments and trailing commas, as hosts accept them. Members that are
// not known are ignored: [File.Ignored] has them. A mistake is an [Error] with line and column.
package config

import (
	"fmt"
	"net/http"
	"time"

	"holdfast/internal/feature/hosts"
	"holdfast/internal/limit"
)

// A File is the content of a configuration file, with all variables put in.
type File struct {
	Servers  []*Server    // in the order of the file
	Disabled []string     // the names of servers that are switched off
	LeftOut  []LeftOut    // servers that cannot be served here
	Merge    bool         // all servers are also served as one, at MergedPath
	Hosts    []hosts.Rule // how long hosts wait for a call, by patterns of their names
	Ignored  []Ignored
}

// A LeftOut server has a mistake in its entry, or lacks a value: of a variable, an input or an envFile.
// Other servers are served.
type LeftOut struct {
	Name string
	Err  error // an [Error] for each mistake or value
	errs []error
}

// MergedPath is the path of all servers as one.
const MergedPath = "/mcp"

// MergedName is the name of all servers as one. No server can have it.
const MergedName = "*"

// An Ignored member is a member that is not known.
type Ignored struct {
	Place
	Member string // its path, such as "mcpServers.files.autoApprove"
}

// The types of servers.
const (
	Stdio = "stdio" // a command
	HTTP  = "http"  // Streamable HTTP
	SSE   = "sse"   // HTTP+SSE, of revision 2024-11-05
	Any   = "any"   // Streamable HTTP, or HTTP+SSE if the server does not know that
)

// A Server is a server to be served.
type Server struct {
	Name string
	Path string // of its endpoint, "/NAME/mcp" unless it is set
	Type string // Stdio, HTTP, SSE or Any

	// Places in the file: of the server's name, of its command or URL, and of the directory in which the command
	// runs; if the file does not have that directory, of the command.
	At, RunsAt, DirAt Place

	Command []string
	Env     map[string]string // beside the environment of this program
	Dir     string            // absolute: the cwd of the file, or the workspace folder; "" for that of this program, if there is no such folder

	URL    string
	Header http.Header

	Shown  string // the command or URL, for a person: without the values of variables
	merged string // the prefix, if the one made of the name would be another's too
	// StderrToClient is for the program to set: clients get the last lines of a command's stderr when it exits.
	StderrToClient bool
	Settings
}

// A Place is a position in the file.
type Place struct {
	File         string
	Line, Column int // from 1; columns are bytes
}

// String returns "FILE:LINE:COLUMN".
func (p Place) String() string { return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column) }

// Settings are our settings for one server.
type Settings struct {
	Allow, Deny  []string // patterns of tools' names, with "*"; no Allow: all
	Prefix       *string  // of the names of tools and prompts; nil: none at the server's own path
	Safe         []string // patterns of tools that may be called again
	Share        bool     // one process or upstream session for all sessions
	StopIdle     time.Duration
	MaxProcesses int // 0: only the bound of all
	Timeout      time.Duration
	// HandoffAfter is how long a call of a tool may take before it is handed off, by patterns of names.
	HandoffAfter []PatternDuration
	MaxCalls     int            // in flight; 0: any number
	ToolCalls    []PatternCount // in flight of each tool, by patterns of names
	Rate         limit.Rate     // of calls of one client
	Auth         Auth
}

// Auth says who may use a server, and which token the server gets.
type Auth struct {
	Scopes      []string        // all of them are needed for the server
	Tools       []PatternScopes // and these for single tools
	Passthrough bool            // the server gets the token of the client
	Token       *TokenRequest   // or one of Holdfast's; nil: none
}

// PatternScopes are the scopes for the tools with names that match a pattern.
type PatternScopes struct {
	Pattern string
	Scopes  []string
}

// A TokenRequest says how Holdfast gets a token for a server.
type TokenRequest struct {
	URL        string // of the token endpoint
	ID, Secret string // of Holdfast there
	Scopes     []string
	Resource   string // the URL that the token is for (RFC 8707)
	Audience   string
	Exchange   bool // the token of the client is exchanged for it (RFC 8693)
}

// A PatternCount is a number for each tool with a name that matches a pattern.
type PatternCount struct {
	Pattern string
	Most    int
}

// A PatternDuration is a time for the tools with names that match a pattern.
type PatternDuration struct {
	Pattern string
	For     time.Duration
}
