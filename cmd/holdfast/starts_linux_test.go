package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"holdfast/internal/auth/authtest"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// A wrongStart is a command line with a mistake that a new user makes. The program ends with the exit code, and prints one
// line on stderr, which says what to do next. $TAKEN, $FREE, $OWN, $WEB, $TLS, $DEMO, $NOAUTH and $WRONGPASS stand for
// addresses, $DIR for the directory.
type wrongStart struct {
	args string // separated by spaces; ~ stands for a space within one
	code int
	says string // without "holdfast: " before it

	env   string
	stdin string
	// out says that the line is on stdout, within the error for a host.
	out bool
	// serves says that the program still serves, and logs one line with the text.
	serves bool
	// waits says that a line before it announces a wait of seconds.
	waits bool
	// plain says that root would succeed, so that another user runs the program.
	plain bool
}

var wrongStarts = []wrongStart{
	// The command line.
	{args: "srve", code: 2, says: `unknown command "srve": did you mean 'holdfast serve'?`},
	{args: "run --demo", code: 2, says: `unknown command "run": did you mean 'holdfast serve'?`},
	{args: "frobnicate", code: 2, says: `unknown command "frobnicate": 'holdfast help' lists the commands`},
	{args: "help frobnicate", code: 2, says: `unknown command "frobnicate": 'holdfast help' lists the commands`},
	{args: "--demo", code: 2, says: `unknown flag --demo: did you mean 'holdfast serve --demo'?`},
	{args: "--dmeo", code: 2, says: `unknown flag --dmeo: did you mean 'holdfast serve --demo'?`},
	{args: "serve --listn :80", code: 2, says: `unknown flag --listn: did you mean --listen?`},
	{args: "serve --session_ttl 5m --demo", code: 2, says: `unknown flag --session_ttl: did you mean --session-ttl?`},
	{args: "serve -listen :80 --demo", code: 2, says: `unknown flag -listen: did you mean --listen?`},
	{args: "serve -demo", code: 2, says: `unknown flag -demo: did you mean --demo?`},
	{args: "serve --port 8080 --demo", code: 2, says: `unknown flag --port: did you mean --listen?`},
	{args: "serve -p 8080 --demo", code: 2, says: `unknown flag -p: 'holdfast serve --help' lists the flags`},
	{args: "serve --header a:b --demo", code: 2, says: `unknown flag --header: it is one of 'holdfast call': 'holdfast serve --help' lists those of this command`},
	{args: "serve --hlep", code: 2, says: `unknown flag --hlep: did you mean --help?`},
	{args: "serve --=x", code: 2, says: `bad flag syntax: --=x: 'holdfast serve --help' lists the flags`},
	{args: "serve --demo --store", code: 2, says: `--store has no value: want --store URL`},
	{args: "serve --demo --eras", code: 2, says: `--eras has no value: want one of auto, both, legacy, modern`},
	{args: "serve --store --demo", code: 2, says: `--store has no value, as --demo follows it: want --store URL`},
	{args: "serve", code: 2, says: `nothing to serve: give a command (holdfast serve -- COMMAND ARG...), --upstream URL, --config FILE or --demo`},
	{args: "serve --", code: 2, says: `nothing to serve: give a command (holdfast serve -- COMMAND ARG...), --upstream URL, --config FILE or --demo`},
	{args: "serve --demo -- cat", code: 2, says: `both --demo and a command (cat) are given: remove one`},
	{args: "serve --upstream http://$WEB -- cat", code: 2, says: `both --upstream and a command (cat) are given: remove one`},
	{args: "serve --demo --keep 30", code: 2, says: `--keep "30": want a duration like 500ms, 30s, 10m or 2h`},
	{args: "serve --demo --max-sessions many", code: 2, says: `--max-sessions "many": want a whole number`},
	{args: "serve --demo --max-share 75%", code: 2, says: `--max-share "75%": want a number like 0.75`},
	{args: "serve --demo --memory 1G", code: 2, says: `--memory "1G": want a whole size like 512KiB, 4MiB or 1GiB`},
	{args: "serve --demo --memory 512", code: 2, says: `--memory 512: want at least 4MiB, so that a request of --max-body fits`},
	{args: "serve --demo --max-body 1", code: 2, says: `--max-body 1: want at least 1KiB, which a first request needs`},
	{args: "serve --demo --rate 50", code: 2, says: `--rate "50": want a rate like 50/s, 600/m or 10/h`},
	{args: "serve --demo --allow-origin app.example.com", code: 2, says: `--allow-origin "app.example.com": want an origin like https://app.example.com, or *`},
	{args: "serve --demo --allow-origin https://*.example.com", code: 2, says: `--allow-origin "https://*.example.com": a * stands for any origin, and not for a part of one: give each origin, or * alone`},
	{args: "serve --demo --allow-host https://x.example.com", code: 2, says: `--allow-host "https://x.example.com": want the name of a host like mcp.example.com, or * alone`},
	{args: "serve --demo --auth-keys garbled --upstream-auth passthrough", code: 2, says: `--upstream-auth passthrough is for an upstream server: give its URL with --upstream`},

	// Variables.
	{args: "serve --demo", env: "HOLDFAST_RETRY=soon", code: 2, says: `HOLDFAST_RETRY "soon": want a duration like 500ms, 30s, 10m or 2h`},
	{args: "serve --demo", env: "HOLDFAST_LISTEN=8080", code: 2, says: `--listen "8080": want HOST:PORT like 127.0.0.1:8080, or :8080 for all interfaces (--listen is set by HOLDFAST_LISTEN)`},
	{args: "serve --demo", env: "HOLDFAST_UPSTREAM=http://$WEB", code: 2, says: `both --upstream and --demo are given: remove one (--upstream is set by HOLDFAST_UPSTREAM)`},
	{args: "serve --demo", env: "HOLDFAST_LISTN=:0", code: 2, says: `the environment variable HOLDFAST_LISTN sets no flag: did you mean HOLDFAST_LISTEN?`},
	{args: "check good.json", env: "HOLDFAST_LOG_LEVL=debug", code: 2, says: `the environment variable HOLDFAST_LOG_LEVL sets no flag: did you mean HOLDFAST_LOG_LEVEL?`},
	{args: "serve --demo", env: "HOLDFAST_PORT=tcp://10.0.0.1:80", serves: true, says: `msg=serving`},
	{args: "serve --demo", env: "HOLDFAST_KEEP=", serves: true, says: `msg=serving`},

	// The addresses on which it listens.
	{args: "serve --demo --listen $TAKEN", code: 1, says: `--listen $TAKEN is in use by another program: choose another address (port 0: a free one)`},
	{args: "serve --demo --admin 127.0.0.1:0 --listen $TAKEN", code: 1, says: `--listen $TAKEN is in use by another program: choose another address (port 0: a free one)`},
	{args: "serve --demo --admin $TAKEN", code: 1, says: `--admin $TAKEN is in use by another program: choose another address (port 0: a free one)`},
	{args: "serve --demo --admin $FREE --listen $FREE", code: 2, says: `--listen and --admin are both $FREE: each needs its own port`},
	{args: "serve --demo --listen 8080", code: 2, says: `--listen "8080": want HOST:PORT like 127.0.0.1:8080, or :8080 for all interfaces`},
	{args: "serve --demo --listen http://127.0.0.1:8080", code: 2, says: `--listen "http://127.0.0.1:8080": want HOST:PORT like 127.0.0.1:8080, or :8080 for all interfaces`},
	{args: "serve --demo --listen ::1:8080", code: 2, says: `--listen "::1:8080": want HOST:PORT, with an IPv6 address in brackets: [::1]:8080`},
	{args: "serve --demo --listen 127.0.0.1:99999", code: 2, says: `--listen "127.0.0.1:99999": the port "99999" is not one: want a number from 1 to 65535, or 0 for a free port`},
	{args: "serve --demo --admin :mcp", code: 2, says: `--admin ":mcp": the port "mcp" is not one: want a number from 1 to 65535, or 0 for a free port`},
	{args: "serve --demo --listen 192.0.2.77:8080", code: 1, says: `--listen 192.0.2.77:8080: no interface of this machine has that address: choose 127.0.0.1, or 0.0.0.0 for all interfaces`},
	{args: "serve --demo --listen 127.0.0.1:80", plain: true, code: 1, says: `--listen 127.0.0.1:80: this user may not listen on that port: choose one above 1023, or give the program the capability CAP_NET_BIND_SERVICE`},

	// The command.
	{args: "serve -- no-such-program", code: 1, says: `find the server's command: exec: "no-such-program": executable file not found in $PATH: is it installed, and is its name right?`},
	{args: "serve -- ./none", code: 1, says: `find the server's command: exec: "./none": stat ./none: no such file or directory: is the path right? It is one from the working directory`},
	{args: "serve -- ./notexec", code: 1, says: `find the server's command: exec: "./notexec": permission denied: make it executable (chmod +x), or name the program that runs it`},
	{args: "serve -- ./folder", code: 1, says: `find the server's command: exec: "./folder": is a directory: name a program in it`},
	{args: "serve -- own", code: 1, says: `find the server's command: exec: "own": executable file not found in $PATH: it is a file here: did you mean ./own?`},
	{args: "serve -- server.py", code: 1, says: `find the server's command: exec: "server.py": executable file not found in $PATH: name the program that runs it, as in python3 server.py`},
	{args: "serve -- cat~-u", code: 1, says: `find the server's command: exec: "cat -u": executable file not found in $PATH: give the program and each argument as words of their own`},
	{args: "serve -- A=b cat", code: 1, says: `find the server's command: exec: "A=b": executable file not found in $PATH: to set a variable, run it by env: env A=b PROGRAM ARG...`},
	{args: "serve -- --listen :0 cat", code: 2, says: `--listen is after --, where the command begins: give the flags of holdfast before --`},
	{args: "serve http://$WEB/mcp", code: 2, says: `a URL is no command: did you mean --upstream URL?`},
	{args: "serve good.json", code: 2, says: `good.json is no command: did you mean --config good.json?`},
	{args: "serve -- ./plain", code: 1, says: `the server's command "./plain" cannot run: it is a text whose first line does not begin with #!: add that line, or name the program that runs it, as in sh $DIR/plain`},
	{args: "serve -- ./crlf", code: 1, says: `the server's command "./crlf" cannot run: its lines end as on Windows (CR LF), so that the interpreter in its first line is not found: save it with Unix line ends (LF)`},
	{args: "serve -- ./noprogram", code: 1, says: `the server's command "./noprogram" cannot run: its first line names the interpreter /no/such/program, which is not there: install it, or correct that line`},
	{args: "serve -- ./noenv", code: 1, says: `the server's command "./noenv" cannot run: its first line names the interpreter no-such-program, which is not found in $PATH: install it, or correct that line`},
	{args: "serve -- ./nothing", code: 1, says: `the server's command "./nothing" cannot run: the file is empty: is it the right one?`},

	// The file.
	{args: "serve --config none.json", code: 1, says: `--config: open none.json: no such file or directory: is the path right?`},
	{args: "serve --config folder", code: 1, says: `--config: read folder: is a directory: give a file in it`},
	{args: "serve --config secret.json", plain: true, code: 1, says: `--config: open secret.json: permission denied: let the user that holdfast runs as (uid 65534) use it`},
	{args: "check none.json", code: 1, says: `none.json: no such file or directory: is the path right?`},
	{args: "check", code: 2, says: `want one configuration file, as in holdfast check claude_desktop_config.json`},
	{args: "check --config good.json", code: 2, says: `unknown flag --config: the file is an argument, as in holdfast check FILE`},
	{args: "serve --config nothing", code: 1, says: `nothing:1:1: not JSON (comments and trailing commas are allowed): the file is empty: want {"mcpServers": {"NAME": {"command": "…"}}}`},
	{args: "serve --config comma.json", code: 1, says: `comma.json:1:41: not JSON (comments and trailing commas are allowed): invalid character '"' after object value (expecting ',' or '}'): is a comma missing before it?`},
	{args: "serve --config json5.json", code: 1, says: `json5.json:2:2: not JSON (comments and trailing commas are allowed): a name or a text has no quotes: write it as "…"`},
	{args: "serve --config single.json", code: 1, says: `single.json:1:2: not JSON (comments and trailing commas are allowed): a text is in single quotes: write it as "…"`},
	{args: "serve --config windows.json", code: 1, says: `windows.json:1:34: not JSON (comments and trailing commas are allowed): a string has a \ that stands for nothing: write \\ for each, as in "C:\\dir\\program.exe"`},
	{args: "serve --config cut.json", code: 1, says: `cut.json:1:39: not JSON (comments and trailing commas are allowed): the file ends too early: is a } or a ] missing, or a part of the file?`},
	{args: "serve --config page.json", code: 1, says: `page.json:1:1: not JSON (comments and trailing commas are allowed): it is a page of the web: save the file itself`},
	{args: "serve --config key.json", code: 1, says: `key.json:1:1: no servers: add some to "mcpServers", as {"mcpServers": {"NAME": {"command": "…"}}} (what is in "mcpServer" is not read: move it there)`},
	{args: "serve --config member.json", code: 1, says: `member.json:1:17: the server "a" has neither a command nor a url: add one (what is not known is ignored: "comand")`},
	{args: "serve --config paths.json", code: 1, says: `paths.json:1:70: the path /x of the server "b" is that of the server "a": set another with "path"`},
	{args: "serve --config missing.json", serves: true, says: `msg="a server cannot start for now, others are served" server=a error="missing.json:1:34: the server \"a\" cannot start: find the server's command: exec: \"no-such-program\": executable file not found in $PATH: is it installed, and is its name right?"`},
	{args: "serve --config off.json", serves: true, says: `msg="no server is served: all of the file are switched off there" servers=[a]`},
	{args: "serve --config bom.json", serves: true, says: `msg=serving servers=[/a/mcp]`},
	{args: "serve --config utf16.json", serves: true, says: `msg=serving servers=[/a/mcp]`},

	// The upstream server.
	{args: "serve --upstream localhost:3000/mcp", code: 2, says: `--upstream: server URL: want one that begins with http:// or https://, as in http://127.0.0.1:8080/mcp`},
	{args: "serve --upstream http://127.0.0.1:99999/mcp", code: 2, says: `--upstream: server URL: its port is none: want a number up to 65535 after the host`},
	{args: "serve --listen $OWN --upstream http://$OWN/mcp", code: 2, says: `--upstream http://$OWN/mcp is this server itself (--listen): give the URL of the other server`},
	{args: "serve --upstream http://$FREE/mcp", serves: true, says: `error="dial tcp $FREE: connect: connection refused: is it running?"`},
	{args: "serve --upstream https://$WEB/mcp", serves: true, says: `does it speak plain HTTP, with a URL that begins with http://?"`},
	{args: "serve --upstream https://$TLS/mcp", serves: true, says: `if you trust it, name the file of its authority in SSL_CERT_FILE"`},

	// The store.
	{args: "serve --demo --store rocks://localhost", code: 2, says: `--store "rocks:": no such engine: want memory:, file:DIR, nats://HOST or redis://HOST`},
	{args: "serve --demo --store memroy:", code: 2, says: `--store "memroy:": no such engine: want memory:, file:DIR, nats://HOST or redis://HOST: did you mean memory:?`},
	{args: "serve --demo --store redis", code: 2, says: `--store: want an engine's URL: memory:, file:DIR, nats://HOST or redis://HOST: did you mean redis://HOST?`},
	{args: "serve --demo --store /var/lib/holdfast", code: 2, says: `--store: want an engine's URL: memory:, file:DIR, nats://HOST or redis://HOST: did you mean file:/var/lib/holdfast?`},
	{args: "serve --demo --store file://data/x", code: 2, says: `--store "file:": want file:DIR, or file:///DIR: another host's files are not within reach`},
	{args: "serve --demo --store file:good.json", code: 1, says: `--store "file:": good.json is not a directory: choose a directory`},
	{args: "serve --demo --store file:/usr/x", plain: true, code: 1, says: `--store "file:": making directory: mkdir /usr/x: permission denied: let the user that holdfast runs as (uid 65534) write there, or choose another directory`},
	{args: "serve --demo --store redis://$WEB/0", code: 2, says: `--store "redis:": connect: redis: can't parse map reply: "HTTP/1.1 400 Bad Request": is that the address of Redis or Valkey?`},
	{args: "serve --demo --store redis://$NOAUTH/0", code: 2, says: `--store "redis:": connect: NOAUTH Authentication required: it wants a password: write :PASSWORD@ before the host in the URL`},
	{args: "serve --demo --store redis://:bad@$WRONGPASS/0", code: 2, says: `--store "redis:": connect: WRONGPASS invalid username-password pair or user is disabled: are the user and the password in the URL right?`},
	{args: "serve --demo --store redis://$FREE/0", waits: true, code: 1, says: `--store "redis:": connect: dial tcp $FREE: connect: connection refused: is the engine running, and is its address in the URL right?`},
	{args: "serve --demo --store nats://$FREE", waits: true, code: 1, says: `--store "nats:": connecting: nats: no servers available for connection: is the engine running, and is its address in the URL right?`},

	// The clients that may connect.
	{args: "serve --demo --tls-cert cert.pem", code: 2, says: `TLS needs a certificate and its key: give both --tls-cert and --tls-key`},
	{args: "serve --demo --tls-cert none.pem --tls-key key.pem", code: 1, says: `--tls-cert: open none.pem: no such file or directory: is the path right?`},
	{args: "serve --demo --tls-cert cert.pem --tls-key none.pem", code: 1, says: `--tls-key: open none.pem: no such file or directory: is the path right?`},
	{args: "serve --demo --tls-cert cert.pem --tls-key otherkey.pem", code: 1, says: `--tls-cert and --tls-key: cert.pem and otherkey.pem: tls: private key does not match public key: give PEM files of a certificate and of the key that it was made with`},
	{args: "serve --demo --tls-cert cert.pem --tls-key key.pem --tls-client-ca good.json", code: 1, says: `--tls-client-ca good.json: there is no certificate in it: give a PEM file with the certificates of authorities`},
	{args: "serve --demo --tls-cert old.pem --tls-key oldkey.pem", serves: true, says: `msg="the certificate is not valid now, and clients refuse it: renew it, or set the clock right" file=old.pem`},
	{args: "serve --demo --auth-keys none", code: 1, says: `--auth-keys: open none: no such file or directory: is the path right?`},
	{args: "serve --demo --auth-keys garbled", code: 1, says: `--auth-keys: garbled:1: want the SHA-256 of a key after the name, in hexadecimal, as holdfast key prints it`},
	{args: "serve --demo --auth-keys nothing", serves: true, says: `msg="the file has no keys: add one with 'holdfast key NAME >>FILE', it is read again when it changes" file=nothing`},
	{args: "serve --demo --auth-issuer https://auth.example.com", code: 2, says: `tokens for anybody else must not be accepted: give --auth-audience, or the URL of this server with --auth-resource`},
	{args: "serve --demo --auth-issuer https://$FREE --auth-audience a", serves: true, says: `msg="no token can be checked for now, and clients get status 503: is --auth-issuer right, and is it within reach?"`},
	{args: "serve --demo --listen 0.0.0.0:0", serves: true, says: `msg="there is no authentication: everybody who reaches this port can call every tool; use a proxy that authenticates users, or listen on 127.0.0.1 (--listen)"`},
	{args: "serve --demo --audit folder", code: 1, says: `--audit: open folder: is a directory: give a file in it`},
	{args: "serve --demo --audit none/a.jsonl", code: 1, says: `--audit: open none/a.jsonl: no such file or directory: is the path right?`},
	{args: "key", code: 2, says: `want a name for the key's client, as in holdfast key ada`},
	{args: `key ada x"y`, code: 2, says: `"x\"y" cannot be a scope: want a word without spaces and quotes`},

	// Clients.
	{args: "connect", code: 2, says: `no server: give its URL, as in holdfast connect http://127.0.0.1:8080/mcp`},
	{args: "connect npx server", code: 2, says: `want the URL of one server, as in holdfast connect http://127.0.0.1:8080/mcp: a command is served with 'holdfast serve -- COMMAND ARG...'`},
	{args: "connect $DEMO/mcp again", code: 2, says: `want one URL and nothing after it, as in holdfast connect http://127.0.0.1:8080/mcp`},
	{args: "connect http://$WEB/401", stdin: initialize, out: true, says: `who? (HTTP 401): it may want --header 'Authorization: Bearer TOKEN'`},
	{args: "connect $DEMO/nope", stdin: initialize, out: true, says: `404 page not found (HTTP 404): is the path right?`},
	{args: "tools $DEMO/nope", code: 1, says: `$DEMO/nope: 404 page not found (HTTP 404): is the path right?`},
	{args: "tools http://$WEB/401", code: 1, says: `http://$WEB/401: who? (HTTP 401): it may want --header 'Authorization: Bearer TOKEN'`},
	{args: "tools http://$WEB/405", code: 1, says: `http://$WEB/405: no (HTTP 405): is this the URL of an MCP server, and is the path right?`},
	{args: "tools http://$WEB/", code: 1, says: `http://$WEB/: the server sends what cannot be used: it answered with "text/html", not JSON or an event stream: is this the URL of an MCP server?`},
	{args: "tools http://$WEB/json", code: 1, says: `http://$WEB/json: the server sends what cannot be used: the server's answer cannot be read (not a JSON-RPC 2.0 message: "jsonrpc" is not "2.0"): "{\"hello\":\"world\"}": is this the URL of an MCP server?`},
	{args: "tools http://$FREE/mcp", waits: true, code: 1, says: `http://$FREE/mcp: the server has been out of reach for 5s: dial tcp $FREE: connect: connection refused: is it running?`},
	{args: "tools https://$WEB/mcp", waits: true, code: 1, says: `https://$WEB/mcp: the server has been out of reach for 5s: http: server gave HTTP response to HTTPS client: does it speak plain HTTP, with a URL that begins with http://?`},
	{args: "tools http://$WEB/500", waits: true, code: 1, says: `http://$WEB/500: the server has been out of reach for 5s: oops (HTTP 500): the log of the server may say why`},
	{args: "call", code: 2, says: `want a URL, the name of a tool, and optionally its arguments, as in holdfast call http://127.0.0.1:8080/mcp count to=5`},
	{args: "call echo $DEMO/mcp", code: 2, says: `the URL comes before the tool: holdfast call URL echo`},
	{args: "call $DEMO/mcp ecko", code: 1, says: `unknown tool "ecko": did you mean echo?`},
	{args: "call $DEMO/mcp frob", code: 1, says: `unknown tool "frob": 'holdfast tools' lists the 3 of the server`},
	{args: "call $DEMO/mcp echo --text hi", code: 2, says: `unknown flag --text: 'holdfast call --help' lists the flags; an argument of the tool is given as --arg text=VALUE`},
	{args: "call $DEMO/mcp echo hi", code: 2, says: `argument "hi": want NAME=VALUE, or a JSON object like '{"to": 5}'`},
	{args: `call $DEMO/mcp echo {"text":"a"`, code: 2, says: `the arguments are not a JSON object (unexpected end of JSON input): want one like '{"to": 5}', or --arg to=5`},
	{args: "call $DEMO/mcp echo --arg txt=hi", code: 2, says: `--arg txt=hi: echo has no such argument: it has text:string`},
	{args: "call $DEMO/mcp count --arg to=ten", code: 2, says: `--arg to=ten: want a whole number`},
	{args: "call $DEMO/mcp echo", code: 1, says: `echo failed: validating "arguments": validating root: required: missing properties: ["text"]: echo takes text:string`},
	{args: `call $DEMO/mcp count {"to":"ten"}`, code: 1, says: `count failed: validating "arguments": validating root: validating /properties/to: type: ten has type "string", want "integer": count takes to:integer [delay_ms:integer]`},
	{args: "call $DEMO/mcp ask --arg question=Why?", code: 1, says: `ask failed: ask: client does not support elicitation: to answer questions of the server, use a terminal or --interactive`},
	{args: "call $DEMO/mcp echo --header secret", code: 2, says: `--header: want 'Name: value', as in 'Authorization: Bearer TOKEN'`},
	{args: "resume garbage", code: 2, says: `no unfinished call here has the name "garbage" (a token of another machine begins with "hf1.")`},
	{args: "resume hf1.xxxx", code: 2, says: `the token is damaged, or a part of it is missing: copy it as a whole, without a line break`},
	{args: "status $DEMO/mcp", code: 2, says: `a URL alone names no call: give the id of a task after it, or a name or token as holdfast call prints it`},
	{args: "status", code: 1, says: `no unfinished call is saved here: give the token that holdfast call printed`},
	{args: "cancel $DEMO/mcp no-such-task", code: 1, says: `$DEMO/mcp: task not found: its id is not valid here, or it is no longer kept`},
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n"

// nobody is a user without root's rights.
const nobody = 65534

// Each wrong start prints what to do next, once, in one line, and ends with the exit code of its row.
func TestWrongStarts(t *testing.T) {
	t.Parallel()
	at := newStartPlace(t)
	for _, row := range wrongStarts {
		t.Run(strings.TrimSpace(row.env+" "+row.args), func(t *testing.T) {
			t.Parallel()
			if row.waits {
				testlong.Only(t, "it waits for what may start at the same time")
			}
			testlong.Part(t)
			at.try(t, row)
		})
	}
}

// A startPlace is the directory and the servers for the starts.
type startPlace struct {
	dir, program string // any user may run program
	names        *strings.Replacer
}

func newStartPlace(t *testing.T) *startPlace {
	p := &startPlace{dir: t.TempDir()}
	p.writeFiles(t)
	taken := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = taken.Close() })
	web := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, text := http.StatusOK, "<html>"
		switch r.URL.Path {
		case "/401":
			status, text = http.StatusUnauthorized, "who?"
		case "/405":
			status, text = http.StatusMethodNotAllowed, "no"
		case "/500":
			status, text = http.StatusInternalServerError, "oops"
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			text = `{"hello":"world"}`
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	plain, secure := httptest.NewServer(web), httptest.NewUnstartedServer(web)
	secure.Config.ErrorLog = newHTTPLog()
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	p.names = strings.NewReplacer("$TAKEN", taken.Addr().String(), "$FREE", testport.Addr(t), "$OWN", testport.Addr(t), "$DIR", p.dir,
		"$WEB", plain.Listener.Addr().String(), "$TLS", secure.Listener.Addr().String(), "$DEMO", demoAt(t),
		"$NOAUTH", redisThatSays(t, "NOAUTH Authentication required."),
		"$WRONGPASS", redisThatSays(t, "WRONGPASS invalid username-password pair or user is disabled."))
	return p
}

// writeFiles writes the files that the starts name.
func (p *startPlace) writeFiles(t *testing.T) {
	one := `{"mcpServers": {"a": {"command": "cat"}}}`
	wide := "\xff\xfe"
	for _, b := range []byte(one) {
		wide += string(rune(b)) + "\x00"
	}
	for name, text := range map[string]string{
		"good.json": one, "bom.json": "\ufeff" + one, "utf16.json": wide, "secret.json": one, "nothing": "", "garbled": "ada garbage\n",
		"comma.json":   `{"mcpServers": {"a": {"command": "cat"} "b": {"command": "cat"}}}`,
		"json5.json":   "// mine\n{mcpServers: {a: {command: \"cat\"}}}",
		"single.json":  `{'mcpServers': {}}`,
		"windows.json": `{"mcpServers": {"a": {"command": "C:\Users\me\x.exe"}}}`,
		"cut.json":     `{"mcpServers": {"a": {"command": "cat"`,
		"page.json":    "<!DOCTYPE html>",
		"key.json":     `{"mcpServer": {"a": {"command": "cat"}}}`,
		"member.json":  `{"mcpServers": {"a": {"comand": "cat"}}}`,
		"paths.json":   `{"mcpServers": {"a": {"command": "cat", "holdfast": {"path": "/x"}}, "b": {"command": "cat", "holdfast": {"path": "/x"}}}}`,
		"missing.json": `{"mcpServers": {"a": {"command": "no-such-program"}, "b": {"command": "cat"}}}`,
		"off.json":     `{"mcpServers": {"a": {"command": "cat", "disabled": true}}}`,
		"plain":        "echo hi\n", "crlf": "#!/bin/sh\r\necho hi\r\n", "own": "#!/bin/sh\n", "notexec": "#!/bin/sh\n", "server.py": "import sys\n",
		"noprogram": "#!/no/such/program\n", "noenv": "#!/usr/bin/env no-such-program\n",
	} {
		mode := os.FileMode(0o755)
		if name == "notexec" || name == "secret.json" {
			mode = 0o600
		}
		mcptest.Check(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), mode))
	}
	mcptest.Check(t, os.Mkdir(filepath.Join(p.dir, "folder"), 0o755))
	ca := authtest.NewCA(t, "starts")
	cert, key := ca.Server("localhost")
	_, other := ca.Server("localhost")
	old := ca.Expired("localhost")
	oldKey := mcptest.Must(x509.MarshalPKCS8PrivateKey(old.PrivateKey))(t)
	for name, text := range map[string][]byte{
		"cert.pem": cert, "key.pem": key, "otherkey.pem": other,
		"old.pem":    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: old.Certificate[0]}),
		"oldkey.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: oldKey}),
	} {
		mcptest.Check(t, os.WriteFile(filepath.Join(p.dir, name), text, 0o600))
	}
	program := mcptest.Must(exec.LookPath("holdfast"))(t)
	p.program = filepath.Join(p.dir, "program")
	if os.Getuid() == 0 { // otherwise the same user runs it
		text, err := os.ReadFile(program)
		for _, in := range []string{p.dir, filepath.Dir(p.dir)} {
			err = errors.Join(err, os.Chmod(in, 0o755))
		}
		if err == nil {
			err = os.Mkdir(p.program, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(p.program, "holdfast"), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// redisThatSays starts a server that answers each command of a Redis client with an error, and returns its address.
func redisThatSays(t *testing.T, text string) string {
	l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				lines := bufio.NewScanner(c)
				for lines.Scan() {
					if strings.HasPrefix(lines.Text(), "*") { // a command begins
						_, _ = io.WriteString(c, "-"+text+"\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// try tries one start.
func (p *startPlace) try(t *testing.T, row wrongStart) {
	says := p.names.Replace(row.says)
	var args []string
	for _, arg := range strings.Fields(p.names.Replace(row.args)) {
		args = append(args, strings.ReplaceAll(arg, "~", " "))
	}
	if args[0] == "serve" {
		for flag, value := range map[string]string{"--listen": "127.0.0.1:0", "--admin": ""} {
			if !slices.Contains(args, flag) && !strings.HasPrefix(row.env, "HOLDFAST_LISTEN=") {
				args = slices.Insert(args, 1, flag+"="+value)
			}
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	cmd := exec.CommandContext(ctx, "holdfast", args...)
	if row.plain && os.Getuid() == 0 {
		cmd.Path, cmd.Err = filepath.Join(p.program, "holdfast"), nil
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	says = strings.ReplaceAll(says, "uid "+strconv.Itoa(nobody), "uid "+strconv.Itoa(p.user(row)))
	if row.plain && slices.Contains(args, "127.0.0.1:80") && !privileged(80) {
		t.Skip("here any user may listen on any port")
	}
	home := t.TempDir()
	cmd.Dir = p.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "XDG_STATE_HOME=" + home, "GOCOVERDIR=" + os.Getenv("GOCOVERDIR")}
	if row.env != "" {
		cmd.Env = append(cmd.Env, p.names.Replace(row.env))
	}
	cmd.Stdin = strings.NewReader(row.stdin)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for all := bufio.NewScanner(stderr); all.Scan(); {
		if lines = append(lines, all.Text()); row.serves && strings.Contains(all.Text(), says) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
	}
	code := 0
	var exit *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	said := strings.Join(lines, "\n")
	if code != row.code {
		t.Errorf("exit code %d, want %d", code, row.code)
	}
	switch {
	case row.serves:
		if strings.Count(said, says) != 1 {
			t.Errorf("it says\n%s\nwant once\n%s", said, says)
		}
		return
	case row.out:
		if !strings.Contains(stdout.String(), says) || said != "" {
			t.Errorf("it says\n%s\n%s\nwant\n%s", stdout.String(), said, says)
		}
		return
	case len(lines) == 2 && strings.Contains(lines[0], "=INFO msg=\"no answer yet"), // on a busy machine any answer may take so long
		row.waits && strings.Contains(lines[0], "=WARN msg=\"cannot reach the store, trying again\""):
		said = strings.Join(lines[1:], "\n")
	}
	if away := awayFor.FindStringSubmatch(said); away != nil && len(away[1]) == 1 && away[1] >= "5" { // on a busy machine it notices the end of the 5 s later
		said = strings.Replace(said, away[0], "out of reach for 5s", 1)
	}
	if said != "holdfast: "+says || stdout.String() != "" {
		t.Errorf("it says\n%s\n%s\nwant\n%s", stdout.String(), said, "holdfast: "+says)
	}
}

// awayFor finds how many seconds a server has been out of reach.
var awayFor = regexp.MustCompile(`out of reach for (\d+)s`)

// user returns the user who runs a start.
func (p *startPlace) user(row wrongStart) int {
	if row.plain && os.Getuid() == 0 {
		return nobody
	}
	return os.Getuid()
}

// privileged reports whether only root may listen on a port.
func privileged(port int) bool {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	first, wrong := strconv.Atoi(strings.TrimSpace(string(text)))
	return err == nil && wrong == nil && port < first
}
