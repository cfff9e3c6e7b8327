package client

import (
	"net/url"
	"strings"
)

// linked notes the stream URL of a response (SEP-1335, `rel="stream"`). A URL of another
// origin is not used: that origin would get our secrets.
func (a *answer) linked() {
	k, r := a.k, a.r
	for _, value := range r.Header["Link"] {
		ref := streamLink(value)
		if ref == "" || len(ref) > mostWay {
			continue
		}
		u, err := r.Request.URL.Parse(ref)
		if err != nil || !sameOrigin(r.Request.URL, u) {
			k.c.logger.Warn("stream URL of another origin is not used", "origin", originOf(u))
			continue
		}
		k.mu.Lock()
		k.ways.stream, k.ways.refused[attemptStream] = u, false
		k.mu.Unlock()
		k.c.changed()
		return
	}
}

func originOf(u *url.URL) string {
	if u == nil {
		return "none"
	}
	return u.Scheme + "://" + u.Host
}

// streamLink returns the target of the link with the relation stream in a Link header (RFC 8288), or "".
func streamLink(value string) string {
	for value != "" {
		start := strings.IndexByte(value, '<')
		if start < 0 {
			return ""
		}
		end := strings.IndexByte(value[start:], '>')
		if end < 0 {
			return ""
		}
		target := value[start+1 : start+end]
		params := value[start+end+1:]
		next := strings.Index(params, ",")
		for next >= 0 && strings.Count(params[:next], `"`)%2 == 1 { // a comma in quotes
			more := strings.Index(params[next+1:], ",")
			if more < 0 {
				next = -1
				break
			}
			next += 1 + more
		}
		value = ""
		if next >= 0 {
			params, value = params[:next], params[next+1:]
		}
		for p := range strings.SplitSeq(params, ";") {
			name, rel, _ := strings.Cut(strings.TrimSpace(p), "=")
			if !strings.EqualFold(strings.TrimSpace(name), "rel") {
				continue
			}
			for word := range strings.FieldsSeq(strings.Trim(strings.TrimSpace(rel), `"`)) {
				if strings.EqualFold(word, "stream") {
					return target
				}
			}
		}
	}
	return ""
}
