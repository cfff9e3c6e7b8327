package audit

import (
	"encoding/json"
	"strings"
	"testing"
)

// No line contains a value that suffices to get a call's result. All other values are as the client wrote them.
func TestMasked(t *testing.T) {
	t.Parallel()
	const secret, mark = "fE3k-_9aZbQ0mN7x.k2LmN_p4QrS-u8Wx1f", "k2LmN_p4QrS-u8Wx"
	for raw, want := range map[string]string{
		`{"handle":"` + secret + `","seconds":5}`:                            `{"handle":"***","seconds":5}`,
		`{"handle":"` + strings.ReplaceAll(secret, ".", `\u002e`) + `"}`:     `{"handle":"***"}`,
		`{"handle":"\u0066` + secret[1:] + `","x":"\n"}`:                     `{"handle":"***","x":"\n"}`,
		`{ "Handle" : [ "` + secret + `" ] }`:                                `{ "Handle" : [ "***" ] }`,
		`{"a":{"b":"wait for ` + secret + `, and for ` + secret + `."}}`:     `{"a":{"b":"wait for ***, and for ***."}}`,
		`{"a":"` + secret + " " + secret + " " + secret + `"}`:               `{"a":"*** *** ***"}`,
		`{"taskId":"` + secret + `.mb1x2y3z"}`:                               `{"taskId":"***.mb1x2y3z"}`,
		`{"` + secret + `":1}`:                                               `{"***":1}`,
		`{"a":"a \"` + secret + `\" in quotes"}`:                             `{"a":"a \"***\" in quotes"}`,
		`{"cut":"` + secret:                                                  `{"cut":"***"`,
		`{"path":"the-annual-report-of-2026.final-version-of-the-board"}`:    `{"path":"the-annual-report-of-2026.final-version-of-the-board"}`,
		`{"host":"a.example.com","n":1.5,"text":"one. Two\u002e","e":"\"."}`: `{"host":"a.example.com","n":1.5,"text":"one. Two\u002e","e":"\"."}`,
		``: ``, `"`: `"`, `{"a":"\`: `{"a":"\`,
	} {
		got := string(masked([]byte(raw)))
		if got != want || strings.Contains(got, mark) {
			t.Errorf("%s\nbecame %s\nwant   %s", raw, got, want)
		}
		if json.Valid([]byte(raw)) != json.Valid([]byte(got)) {
			t.Errorf("%s became %s", raw, got)
		}
	}
}
