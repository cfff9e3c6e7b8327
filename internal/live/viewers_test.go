package live

import (
	"bufio"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A watching is an open page, without a browser.
type watching struct {
	status int
	text   string // of a refused page
	gone   chan struct{}
}

// watch opens a page.
func watch(t *testing.T, url string, headers ...string) *watching {
	t.Helper()
	resp, err := mcptest.Send(t.Context(), http.MethodGet, url+"/live/events", "", headers...)
	if err != nil {
		t.Fatal(err)
	}
	p := &watching{status: resp.StatusCode, gone: make(chan struct{})}
	if resp.StatusCode != http.StatusOK {
		refused, _ := mcptest.Read(resp, nil)
		p.text = refused.Body
		return p
	}
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: {") {
		t.Fatalf("the page is sent %q, %v", line, err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	go func() {
		defer close(p.gone)
		_, _ = io.Copy(io.Discard, lines)
	}()
	return p
}

// isGone waits until the page's stream has ended.
func (p *watching) isGone(t *testing.T) {
	t.Helper()
	select {
	case <-p.gone:
	case <-time.After(time.Minute):
		t.Error("a page that another has the place of is not sent away")
	}
}

// isThere fails the test if the page's stream has ended.
func (p *watching) isThere(t *testing.T) {
	t.Helper()
	select {
	case <-p.gone:
		t.Error("a page was sent away that should have stayed")
	default:
	}
}

// Clients without the token that open as many pages as are allowed do not shut an operator out.
func TestOperatorHasAPlace(t *testing.T) {
	t.Parallel()
	s := serve(t, New(Options{Token: "secret"}), Source{})
	var strangers []*watching
	for range mostViewers {
		strangers = append(strangers, watch(t, s.URL))
	}
	if p := watch(t, s.URL); p.status != http.StatusServiceUnavailable || !strings.Contains(p.text, "token") {
		t.Errorf("one page more: %d %s", p.status, p.text)
	}
	if p := watch(t, s.URL, HeaderToken, "wrong"); p.status != http.StatusForbidden {
		t.Errorf("with a wrong token: %d %s", p.status, p.text)
	}
	var operators []*watching
	for i := range mostViewers {
		operators = append(operators, watch(t, s.URL, HeaderToken, "secret"))
		strangers[i].isGone(t)
		for _, p := range strangers[i+1:] {
			p.isThere(t)
		}
	}
	if p := watch(t, s.URL); p.status != http.StatusServiceUnavailable {
		t.Errorf("a page without the token beside those of operators: %d", p.status)
	}
	newest := watch(t, s.URL, HeaderToken, "secret")
	operators[0].isGone(t)
	for _, p := range append(operators[1:], newest) {
		p.isThere(t)
	}
}

// The page offers a field for the token, and shows the calls once the token is entered.
func TestOperatorHasAPlaceInBrowser(t *testing.T) {
	t.Parallel()
	testlong.Only(t, "it starts a browser")
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	l := New(Options{Token: "secret"})
	s := serve(t, l, Source{})
	var strangers []*watching
	for range mostViewers {
		strangers = append(strangers, watch(t, s.URL))
	}
	begin(l, "s", "count")
	page := open(t, chromium, s.URL)
	page.until(`document.querySelector("#state").textContent.startsWith("too many pages are open") && !document.querySelector("#enter").hidden`)
	enter := func(token string) {
		page.until(`(document.querySelector("#enter").click(), document.querySelector("#token").value = "` + token + `", document.querySelector("#yes").click(), true)`)
	}
	enter("wrong")
	page.until(`document.querySelector("#state").textContent.startsWith("too many pages are open") && !document.querySelector("#enter").hidden`)
	enter("secret")
	page.until(`document.querySelectorAll("#calls tr").length === 1 && document.querySelector("#enter").hidden && document.querySelector("#state").className === "pill good"`)
	strangers[0].isGone(t)
}
