package redact

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Args returns the arguments of a command as a person may see them: without the values of names of
// credentials (--token X, --header "Name: X", TOKEN=X, {"apiKey": "X"}), and without texts that look like
// credentials. Variables (${NAME}) stay, but not their defaults.
func Args(args []string) []string {
	shown := make([]string, len(args))
	before, own := "", packages(args)
	for i, arg := range args {
		value, secret := short(before, arg)
		if secret && i > own {
			shown[i] = value
		} else if flag := isFlag(before); flag && isHeader(before) && !isFlag(arg) {
			shown[i] = header(arg)
		} else if flag && !isFlag(arg) && Secretive(before) {
			shown[i] = hidden(arg)
		} else {
			shown[i] = argument(arg)
		}
		before = arg
	}
	return shown
}

// isFlag reports whether an argument is the name of an option without its value.
func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && !strings.ContainsAny(arg, "=: \t\n") && !strings.ContainsAny(arg[1:2], "0123456789.")
}

// isHeader reports whether an option takes an HTTP header as its value.
func isHeader(flag string) bool {
	name := strings.ToLower(strings.TrimLeft(flag, "-"))
	return flag == "-H" || strings.HasSuffix(name, "header") || strings.HasSuffix(name, "headers")
}

// words mark a name as that of a credential, if they are a whole word of it.
var words = []string{
	"key", "keys", "pat", "pass", "pwd", "pw", "cred", "creds", "sig", "otp", "pin", "dsn", "sid", "session", "connection", "conn", "salt", "seed", "mnemonic", "license", "login",
}

// Secretive reports whether the value of a name may be a credential. The name is that of an option, an
// environment variable, a header, or a JSON member.
func Secretive(name string) bool {
	if Credential(name) {
		return true
	}
	return slices.ContainsFunc(wordsOf(name), func(word string) bool { return slices.Contains(words, word) })
}

// wordsOf returns the words of a name: my-api_key and myApiKey have my, api and key.
func wordsOf(name string) (all []string) {
	var word []rune
	end := func() {
		if len(word) > 0 {
			all = append(all, strings.ToLower(string(word)))
		}
		word = nil
	}
	lower := false
	for _, c := range name {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) {
			end()
			lower = false
			continue
		}
		if unicode.IsUpper(c) && lower {
			end()
		}
		lower = unicode.IsLower(c)
		word = append(word, c)
	}
	end()
	return all
}

// harmless matches a text of variables without defaults, which the scheme of a credential may precede.
var harmless = regexp.MustCompile(`^(?i:bearer|basic|token)?\s*(\$\{[A-Za-z0-9_:.-]*\}|\$[A-Za-z_][A-Za-z0-9_]*|\{env:[A-Za-z0-9_]+\})+$`)

// hidden returns Mark for a value that may be a credential; an empty or harmless value stays.
func hidden(value string) string {
	if value == "" || harmless.MatchString(strings.TrimSpace(value)) && !strings.Contains(value, ":-") {
		return value
	}
	return Mark
}

// header returns a header, as "Name: value", with its value hidden.
func header(text string) string {
	name, value, ok := strings.Cut(text, ":")
	if !ok {
		if name, value, ok = strings.Cut(text, "="); !ok {
			return hidden(text)
		}
		return name + "=" + hidden(value)
	}
	space := value[:len(value)-len(strings.TrimLeft(value, " "))]
	return name + ":" + space + hidden(value[len(space):])
}

// named matches a name and the sign that assigns a value to it.
var named = regexp.MustCompile(`([A-Za-z][A-Za-z0-9_.-]*)(["']?\s*[:=]+\s*)`)

// known matches the tokens of some services, and a scheme of credentials with the credential.
var known = regexp.MustCompile(`\b(gh[opusr]_|github_pat_|glpat-|xox[a-z]-|sk-|sk_|pk_|rk_|AKIA|AIza|eyJ|hf_|npm_|pypi-|figd_|lin_api_|ntn_|secret_|whsec_|dop_v1_)[A-Za-z0-9._-]{6,}|\b(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]+`)

// argument returns an argument without the secrets that its own text shows.
func argument(arg string) string {
	if name, value, ok := strings.Cut(arg, "="); ok && isFlag(name) {
		switch {
		case isHeader(name):
			return name + "=" + header(value)
		case Secretive(name):
			return name + "=" + hidden(value)
		}
		if shown, secret := short(name, value); secret {
			return name + "=" + shown
		}
		return name + "=" + argument(value)
	}
	if shown, secret := attached(arg); secret {
		return shown
	}
	if text, ok := object(arg); ok {
		return text
	}
	if strings.Contains(arg, "://") {
		arg = Of([]string{arg}).Text(arg)
	}
	return known.ReplaceAllString((*Secrets)(nil).Text(assigned(shell(arg))), Mark)
}

// assigned returns a text without the values that are assigned to names of credentials. A value is in
// quotes, or ends with the text.
func assigned(text string) string {
	for from := 0; from < len(text); {
		at := named.FindStringSubmatchIndex(text[from:])
		if at == nil {
			return text
		}
		name, begin := text[from+at[2]:from+at[3]], from+at[1]
		from = begin
		if !Secretive(name) || strings.HasPrefix(text[begin:], "//") {
			continue
		}
		if begin < len(text) && (text[begin] == '"' || text[begin] == '\'') {
			if end := strings.IndexByte(text[begin+1:], text[begin]); end >= 0 {
				value := hidden(text[begin+1 : begin+1+end])
				rest := text[begin+1+end:]
				text = text[:begin+1] + value + rest
				from = begin + 1 + len(value)
				continue
			}
		}
		return text[:begin] + hidden(text[begin:])
	}
	return text
}

// object returns an argument that is a JSON object or array, without its secrets.
func object(arg string) (string, bool) {
	text := strings.TrimSpace(arg)
	if !strings.HasPrefix(text, "{") && !strings.HasPrefix(text, "[") {
		return "", false
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil || d.More() {
		return "", false
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(masked(v, false)) != nil {
		return "", false
	}
	return strings.TrimSuffix(out.String(), "\n"), true
}

// masked returns a JSON value without its secrets; with secret, without all texts and numbers.
func masked(v any, secret bool) any {
	switch v := v.(type) {
	case map[string]any:
		for name := range v {
			v[name] = masked(v[name], secret || Secretive(name))
		}
		return v
	case []any:
		for i := range v {
			v[i] = masked(v[i], secret)
		}
		return v
	case string:
		if secret {
			return hidden(v)
		}
		return argument(v)
	case json.Number:
		if secret {
			return Mark
		}
	}
	return v
}
