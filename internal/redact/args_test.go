package redact

import (
	"strings"
	"testing"
)

// Args hides the value after the name of a credential, in each form of arguments, and shows the rest.
func TestArgs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"--header|Authorization: Bearer s3cret", "--header Authorization: ***"},
		{"--header|X-Any:s3cret", "--header X-Any:***"},
		{"--header=Authorization: Bearer s3cret", "--header=Authorization: ***"},
		{"-H|X-Any: s3cret", "-H X-Any: ***"},
		{"--extra-header|X-Any=s3cret", "--extra-header X-Any=***"},
		{"--header|Authorization:${AUTH}", "--header Authorization:${AUTH}"},
		{"--header|Authorization: Bearer ${AUTH}", "--header Authorization: Bearer ${AUTH}"},
		{"--header|Authorization: ${AUTH:-s3cret}", "--header Authorization: ***"},
		{"--header|s3cret", "--header ***"},
		{"--key|s3cret", "--key ***"},
		{"--key=s3cret", "--key=***"},
		{"-key|s3cret", "-key ***"},
		{"--api-key|s3cret", "--api-key ***"},
		{"--apiKey|s3cret", "--apiKey ***"},
		{"--token|s3cret", "--token ***"},
		{"--TOKEN=s3cret", "--TOKEN=***"},
		{"--access_token|s3cret", "--access_token ***"},
		{"--pat|s3cret", "--pat ***"},
		{"--password|s3cret", "--password ***"},
		{"--client-secret|s3cret", "--client-secret ***"},
		{"--connection-string|Server=h;Pwd=s3cret", "--connection-string ***"},
		{"--token|${TOKEN}", "--token ${TOKEN}"},
		{"--token|${TOKEN:-s3cret}", "--token ***"},
		{"--token|--verbose", "--token --verbose"},
		{"-e|GITHUB_TOKEN=s3cret", "-e GITHUB_TOKEN=***"},
		{"--env=API_KEY=s3cret", "--env=API_KEY=***"},
		{"API_KEY=s3cret", "API_KEY=***"},
		{`--config|{"apiKey":"s3cret","n":1}`, `--config {"apiKey":"***","n":1}`},
		{`--config={"auth":{"user":"s3cret","pass":"s3cret"}}`, `--config={"auth":{"pass":"***","user":"***"}}`},
		{`[{"name":"x","token":["s3cret"]}]`, `[{"name":"x","token":["***"]}]`},
		{`{"pin":12345}`, `{"pin":"***"}`},
		{`{"args":["--key=s3cret"]}`, `{"args":["--key=***"]}`},
		{`{'apiKey': 's3cret', 'n': 1}`, `{'apiKey': '***', 'n': 1}`},
		{`apiKey: s3cret`, `apiKey: ***`},
		{"https://u:s3cret@h/p", "https://***@h/p"},
		{"https://h/p?api_key=s3cret", "https://h/p?api_key=***"},
		{"ghp_s3crets3cret", "***"},
		{"Bearer s3cret", "***"},
		{"-y|@scope/name|--port|8080|/usr/lib|plain", "-y @scope/name --port 8080 /usr/lib plain"},
		{"--keyboard|de|--monkey=x|--host=h", "--keyboard de --monkey=x --host=h"},
		{"-c|echo ${1:-d}", "-c echo ${1:-d}"},
		{"--|x", "-- x"},
		{"", ""},
		{"-p|SECRET", "-p ***"},
		{"-p|secret", "-p ***"},
		{"-P|hunter2", "-P ***"},
		{"-p=s3cret", "-p=***"},
		{"-ps3cret", "-p***"},
		{"-pSECRET", "-p***"},
		{"-psecretive", "-p***"},
		{"-k|s3cret", "-k ***"},
		{"-t|s3cret", "-t ***"},
		{"-t|SECRET", "-t ***"},
		{"-a|Pa$$word", "-a ***"},
		{"-p|$PASSWORD", "-p $PASSWORD"},
		{"-p|${PASSWORD}", "-p ${PASSWORD}"},
		{"-p|8080|-p|8080:80|-p|127.0.0.1:8080:80/tcp|-p8080|-P|5432|-p=80", "-p 8080 -p 8080:80 -p 127.0.0.1:8080:80/tcp -p8080 -P 5432 -p=80"},
		{"-port|8080|-path|/x|-production|-profile|x", "-port 8080 -path /x -production -profile x"},
		{"-t|stdio|-t|streamable-http|-k|-s|my-server", "-t stdio -t streamable-http -k -s my-server"},
		{"-p|./x|-p|/etc/x|-p|3.12|-P|@scope/name", "-p ./x -p /etc/x -p 3.12 -P @scope/name"},
		{"npx|-y|-p|typescript|tsc|-p|SECRET", "npx -y -p typescript tsc -p ***"},
		{"docker|run|-i|-t|mcp/github:1.2", "docker run -i -t mcp/github:1.2"},
		{"-u|me:s3cret", "-u me:***"},
		{"-ume:s3cret", "-ume:***"},
		{"--user|me:s3cret", "--user me:***"},
		{"--user=me:s3cret", "--user=me:***"},
		{"-u|me|-u|1000:1000|--user=0:0", "-u me -u 1000:1000 --user=0:0"},
		{"--pass=s3cret", "--pass=***"},
		{"-HAuthorization: Bearer s3cret", "-HAuthorization: ***"},
		{"-H|Authorization: Bearer s3cret", "-H Authorization: ***"},
		{"sh|-c|mysql -u me -p s3cret --port 80", "sh -c mysql -u me -p *** --port 80"},
		{"sh|-c|x --token s3cret -H 'A: s3cret' && y", "sh -c x --token *** -H 'A: ***' && y"},
	} {
		if got := strings.Join(Args(strings.Split(c.args, "|")), " "); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.args, got, c.want)
		}
	}
}
