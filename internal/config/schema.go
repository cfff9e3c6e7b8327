package config

// These types are the form of a file. [decoder] reads it; docs/holdfast.schema.json describes
// it to editors, and a test compares the two.

// hostFile is the whole file.
type hostFile struct {
	Schema         text              `json:"$schema"`
	McpServers     named[hostServer] `json:"mcpServers"`
	Servers        named[hostServer] `json:"servers"`            // VS Code
	ContextServers named[hostServer] `json:"context_servers"`    // Zed
	AmpServers     named[hostServer] `json:"amp.mcpServers"`     // Amp
	Inputs         []hostInput       `json:"inputs"`             // VS Code
	MCP            hostMCP           `json:"mcp"`                // the Gemini CLI, opencode, or settings of VS Code
	Allow          []text            `json:"allowMCPServers"`    // Gemini CLI, older
	Excluded       []text            `json:"excludeMCPServers"`  // Gemini CLI, older
	Exclude        []text            `json:"excludeTools"`       // Gemini CLI, older
	Tools          hostSwitches      `json:"tools"`              // opencode; Gemini CLI
	Permission     hostSwitches      `json:"permission"`         // opencode
	AmpDisable     []text            `json:"amp.tools.disable"`  // Amp
	AmpEnable      []text            `json:"amp.tools.enable"`   // Amp
	AmpPermissions []hostRule        `json:"amp.mcpPermissions"` // Amp
	Holdfast       ours              `json:"holdfast"`
}

// hostServer is a server, as hosts have it.
type hostServer struct {
	Name     text        `json:"name"` // Continue, which has a list of servers
	Type     text        `json:"type"`
	Command  hostCommand `json:"command"`
	Args     []text      `json:"args"`
	Env      named[text] `json:"env"`
	Environ  named[text] `json:"environment"` // opencode
	EnvFile  text        `json:"envFile"`
	Cwd      text        `json:"cwd"`
	URL      text        `json:"url"`
	Server   text        `json:"serverUrl"` // Windsurf
	HTTP     text        `json:"httpUrl"`   // Gemini CLI
	Headers  named[text] `json:"headers"`
	Timeout  loose       `json:"timeout"`
	Trust    loose       `json:"trust"`          // Gemini CLI: whether it asks the user before calls
	Include  []text      `json:"includeTools"`   // Gemini CLI, Amp
	Exclude  []text      `json:"excludeTools"`   // Gemini CLI
	Tools    hostTools   `json:"tools"`          // Copilot CLI
	On       []text      `json:"enabled_tools"`  // Codex, Crush
	Off      []text      `json:"disabledTools"`  // Kiro, Roo, Windsurf
	Off2     []text      `json:"disabled_tools"` // Codex, Crush
	Source   loose       `json:"source"`         // Zed: the file, or an extension that has the command
	Disabled bool        `json:"disabled"`
	Enabled  *bool       `json:"enabled"`
	Holdfast *settings   `json:"holdfast"`
}

// hostCommand is a program; with opencode a list of it and its arguments, and in older files of Zed an object.
type hostCommand struct {
	text             // the program
	Path text        `json:"path"`
	Args []text      `json:"args"`
	Env  named[text] `json:"env"`
}

// loose is a value of any type: hosts differ.
type loose struct {
	at     int // 0: there is none
	number float64
}

// hostMCP is the member "mcp": with the Gemini CLI the names of the servers that it uses, in settings of
// VS Code the servers and inputs, and else servers (opencode, Crush).
type hostMCP struct {
	Allowed  []text            `json:"allowed"`
	Excluded []text            `json:"excluded"`
	Servers  named[hostServer] `json:"servers"`
	Inputs   []hostInput       `json:"inputs"`
	others   named[hostServer]
}

// hostInput is a value that VS Code asks for.
type hostInput struct {
	Type        text   `json:"type"`
	ID          text   `json:"id"`
	Description text   `json:"description"`
	Default     *text  `json:"default"`
	Password    bool   `json:"password"`
	Options     []text `json:"options"`
}

// ours is the member "holdfast" of the file. Its settings are the defaults of all servers.
type ours struct {
	Merge   bool            `json:"merge"`
	Servers named[settings] `json:"servers"`
	Hosts   named[patience] `json:"hosts"`
	defaults
}

// patience says how long a kind of host waits for a call.
type patience struct {
	Limit    *duration `json:"limit"`
	Progress bool      `json:"progress"`
}

// defaults are settings that servers may share.
type defaults struct {
	Tools        *toolList       `json:"tools"`
	Safe         []text          `json:"safe"`
	Share        *bool           `json:"share"`
	StopIdle     *duration       `json:"stopIdle"`
	MaxProcesses *count          `json:"maxProcesses"`
	Timeout      *duration       `json:"timeout"`
	HandoffAfter named[duration] `json:"handoffAfter"`
	MaxCalls     *count          `json:"maxCalls"`
	ToolCalls    named[count]    `json:"toolCalls"`
	Rate         *rate           `json:"rate"`
	RateBurst    *count          `json:"rateBurst"`
	Auth         *authSettings   `json:"auth"`
}

// settings are those of one server.
type settings struct {
	Path   text  `json:"path"`
	Prefix *text `json:"prefix"`
	defaults
}

// authSettings say who may use a server, and which token the server gets. "passthrough" stands
// for {"upstream": "passthrough"}.
type authSettings struct {
	Scopes   []text        `json:"scopes"`
	Tools    named[[]text] `json:"tools"`
	Upstream *upstreamAuth `json:"upstream"`
}

// upstreamAuth says which token a server that runs elsewhere gets: by one of its members, or
// "passthrough".
type upstreamAuth struct {
	at                int
	passthrough       bool
	ClientCredentials *tokenRequest `json:"clientCredentials"`
	TokenExchange     *tokenRequest `json:"tokenExchange"`
}

// tokenRequest says how a token is asked for.
type tokenRequest struct {
	at           int
	TokenURL     text   `json:"tokenUrl"`
	ClientID     text   `json:"clientId"`
	ClientSecret text   `json:"clientSecret"`
	Scopes       []text `json:"scopes"`
	Resource     text   `json:"resource"`
	Audience     text   `json:"audience"`
}

// toolList says which tools clients may call.
type toolList struct {
	Allow []text `json:"allow"`
	Deny  []text `json:"deny"`
}
