// Package redact keeps the secrets of URLs out of errors, logs and terminals. A URL may have secrets as its user and password, in its query, in
// its fragment, or as a long segment of its path.
package redact

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Mark stands where a secret was.
const Mark = "***"

// The least lengths of secrets, in bytes. Shorter texts are in too many words by chance.
const (
	leastPassword = 3
	leastValue    = 6
	leastSegment  = 20 // of a path
)

// Secrets are texts to remove. A nil Secrets removes only the users and passwords that [Secrets.Text] finds itself. A Secrets may be used
// concurrently.
type Secrets struct {
	forms   []string // all forms of each secret
	replace *strings.Replacer
}

// Of returns the secrets of URLs. They may be malformed: the password of a URL with a typing error is a secret too. The values of the query
// parameters in plain are not secret.
func Of(urls []string, plain ...string) *Secrets {
	var all []string
	for _, raw := range urls {
		all = append(all, secretsOf(raw, plain)...)
	}
	return Texts(all...)
}

// Texts returns secrets that are given as they are, such as tokens.
func Texts(secrets ...string) *Secrets {
	var forms []string
	for _, secret := range secrets {
		forms = append(forms, formsOf(secret)...)
	}
	return of(forms)
}

func of(forms []string) *Secrets {
	if len(forms) == 0 {
		return nil
	}
	// If two forms begin at one place, the longer one is replaced.
	slices.SortFunc(forms, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	forms = slices.Compact(forms)
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		pairs = append(pairs, form, Mark)
	}
	return &Secrets{forms, strings.NewReplacer(pairs...)}
}

// userinfo matches the user and password of a URL (RFC 3986, section 3.2.1).
var userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#"'<>]*(@)`)

// Text returns a text without the secrets, and without the users and passwords of all URLs in it.
func (s *Secrets) Text(text string) string {
	if s != nil {
		text = s.replace.Replace(text)
	}
	if strings.Contains(text, "@") {
		text = userinfo.ReplaceAllString(text, "${1}"+Mark+"${2}")
	}
	return text
}

// Error returns an error that wraps err, with a text without the secrets.
func (s *Secrets) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if told := s.Text(text); told != text {
		return &redacted{told, err}
	}
	return err
}

type redacted struct {
	text string
	err  error
}

func (e *redacted) Error() string { return e.text }

func (e *redacted) Unwrap() error { return e.err }

// URL returns a URL for people: scheme, host and path, without secrets. It is "" for a text that is not a URL with a host.
func URL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return ""
	}
	where := url.URL{Scheme: u.Scheme, Host: u.Host}
	if !strings.Contains(raw[strings.Index(raw, u.Host)+len(u.Host):], "@") { // with an @ the path may be half a password
		where.Path, where.RawPath = u.Path, u.RawPath
	}
	return Of([]string{raw}).Text(where.String())
}

// Written returns a URL as its user has written it, and perhaps malformed, without user, password, query and fragment. Variables (${NAME})
// stay, but not their defaults. A text that does not even look like a URL becomes Mark: it may be a secret in the wrong place.
func Written(raw string) string {
	text := strings.TrimSpace(raw)
	if len(text) > leastPassword && !looksLikeURL.MatchString(text) && !strings.Contains(text, "@") {
		return Mark
	}
	if at := looksLikeURL.FindStringIndex(text); at != nil {
		if i := strings.IndexAny(text[at[1]:], " \t\n"); i >= 0 && !strings.Contains(text, "@") {
			text = text[:at[1]+i+1] + Mark
		}
	}
	if from, to := strings.Index(text, ":-"), strings.LastIndex(text, "}"); from >= 0 && from < to {
		text = text[:from+len(":-")] + Mark + text[to:]
	}
	if at := strings.LastIndex(text, "@"); at >= 0 {
		from := 0
		if i := strings.Index(text[:at], "://"); i >= 0 {
			from = i + len("://")
		} else if i := begin.FindStringIndex(text[:at]); i != nil {
			from = i[1]
		}
		if from < at {
			text = text[:from] + Mark + text[at:]
		}
	}
	if i := strings.IndexAny(text, "?#"); i >= 0 && i+1 < len(text) {
		text = text[:i+1] + Mark
	}
	return argument(Of([]string{raw}).Text(text))
}

// looksLikeURL matches the beginning of a text that is meant as a URL: a scheme, a variable, a path, or a host with a port or a domain.
var looksLikeURL = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]{0,15} ?:/{1,3}|\$\{[^}]*\}|\{env:[^}]*\}|\$[A-Z_]+\b|/|(localhost|[a-z0-9-]{1,30}(\.[a-z0-9-]{1,30})*\.[a-z]{2,10}|[0-9]+(\.[0-9]+){3})(:[0-9]{1,5})?([/?#]|$)|[a-z0-9.-]{1,30}:[0-9]{1,5}([/?#]|$))`)

// begin matches the beginning of a URL, anywhere in a text.
var begin = regexp.MustCompile(`[a-zA-Z0-9+.-]*:/{1,3}`)

// secretsOf returns the secrets of a URL.
func secretsOf(raw string, plain []string) []string {
	rest := raw
	if i := strings.Index(raw, "://"); i >= 0 {
		rest = raw[i+3:]
	} else if at := begin.FindStringIndex(raw); at != nil {
		rest = raw[at[1]:]
	} else if !strings.Contains(raw, "@") || isPath(raw) {
		return nil
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	var all []string
	if i := strings.LastIndex(authority, "@"); i >= 0 {
		all = append(append(all, passwords(authority[:i])...), basic(authority[:i]))
	} else if i := strings.LastIndex(rest, "@"); i >= 0 {
		// A password with a character that ends the authority.
		if _, password, ok := strings.Cut(rest[:i], ":"); ok {
			all = append(all, password)
			if _, digits, _ := strings.Cut(authority, ":"); strings.Trim(digits, "0123456789") != "" {
				all = append(all, pieces(password)...)
			}
		}
	}
	if strings.Contains(rest, "://") { // another URL follows
		all = append(all, secretsOf(rest, plain)...)
	}
	return append(all, tailSecrets(tail, plain)...)
}

// isPath reports whether a text with an at sign is a file path or an npm package, such as /usr/lib/node_modules/@scope/name or @scope/name@1.0,
// and not a URL without its scheme.
func isPath(text string) bool {
	return !strings.Contains(text, ":") && (strings.HasPrefix(text, "@") || strings.HasPrefix(strings.TrimLeft(text, "."), "/"))
}

// passwords returns the passwords of a user and password, or of those of several hosts (H1,USER:PASS@H2).
func passwords(info string) []string {
	var all []string
	add := func(info string) {
		user, password, ok := strings.Cut(info, ":")
		if !ok {
			password = user // a token may stand there
		}
		if len(password) >= leastPassword {
			all = append(append(all, password), pieces(password)...)
			for part := range strings.SplitSeq(password, "@") { // the host may begin after any @
				if len(part) >= leastValue {
					all = append(all, part)
				}
			}
		}
	}
	add(info)
	for part := range strings.SplitSeq(info, ",") {
		if i := strings.LastIndex(part, "@"); i >= 0 {
			part = part[:i]
		}
		if strings.Contains(part, ":") && part != info {
			add(part)
		}
	}
	return all
}

// basic returns a user and password in the form of a header (RFC 7617).
func basic(info string) string {
	user, password, _ := strings.Cut(info, ":")
	for _, part := range []*string{&user, &password} {
		if plain, err := url.PathUnescape(*part); err == nil {
			*part = plain
		}
	}
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// pieces returns the parts into which parsers may split a password with reserved characters of URLs.
func pieces(password string) []string {
	parts := strings.FieldsFunc(password, func(r rune) bool { return strings.ContainsRune("/?#@,:[]& \t\r\n\x7f", r) })
	return slices.DeleteFunc(parts, func(part string) bool { return len(part) < leastValue || part == password })
}

// tailSecrets returns the secrets of a path, query and fragment.
func tailSecrets(tail string, plain []string) []string {
	tail, fragment, _ := strings.Cut(tail, "#")
	path, query, _ := strings.Cut(tail, "?")
	var all []string
	for segment := range strings.SplitSeq(path, "/") {
		if len(segment) >= leastSegment {
			all = append(all, segment)
		}
	}
	for part := range strings.SplitSeq(query, "&") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			value = name
		}
		if len(value) >= leastValue && !slices.Contains(plain, name) {
			all = append(append(all, value), pieces(value)...)
		}
	}
	if len(fragment) >= leastValue {
		all = append(all, fragment)
	}
	return all
}

// formsOf returns the forms in which a secret of a URL, or a part of it, may stand in a text: as it was given, decoded, encoded in other ways,
// and quoted.
func formsOf(secret string) []string {
	plain := []string{secret}
	if one, err := url.PathUnescape(secret); err == nil {
		plain = append(plain, one)
	}
	if one, err := url.QueryUnescape(secret); err == nil {
		plain = append(plain, one)
	}
	all := slices.Clone(plain)
	for _, one := range plain {
		_, inURL, _ := strings.Cut(url.UserPassword("", one).String(), ":")
		all = append(all, inURL, url.QueryEscape(one), url.PathEscape(one))
	}
	for _, one := range slices.Clone(all) {
		quoted := strconv.Quote(one)
		all = append(all, quoted[1:len(quoted)-1])
		if quoted, err := json.Marshal(one); err == nil {
			all = append(all, string(quoted[1:len(quoted)-1]))
		}
	}
	return slices.DeleteFunc(all, func(form string) bool { return len(form) < leastPassword })
}

// The name of a header with a credential contains one of these.
var credentials = []string{
	"auth", "cookie", "token", "secret", "passw", "credential", "apikey", "api-key", "api_key", "access-key", "signature",
	"jwt", "assertion", "bearer", "client-cert", "private",
}

// Credential reports whether the name of a header says that its value may be a credential.
func Credential(header string) bool {
	header = strings.ToLower(header)
	return slices.ContainsFunc(credentials, func(part string) bool { return strings.Contains(header, part) })
}

// With returns the secrets of s and of others; each may be nil.
func (s *Secrets) With(others ...*Secrets) *Secrets {
	var forms []string
	for _, one := range append(others, s) {
		if one != nil {
			forms = append(forms, one.forms...)
		}
	}
	return of(forms)
}
