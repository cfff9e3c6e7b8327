package followcall

import (
	"fmt"
	"time"

	"holdfast/client"
	"holdfast/internal/terminal"
)

// hintAfter is how long a call may take before the user sees the command that resumes it.
const hintAfter = time.Second

// saveEvery is how often the file of a call is written at the most.
const saveEvery = 200 * time.Millisecond

// hint is whether the user has seen the command that resumes the call:
//
//	state    event                                          next state
//	notDue   the call takes long                            due
//	notDue   the call has a token, and nothing is saved     shown
//	due      the call can be resumed from elsewhere         shown
//	due      the user has answered a question               notDue
//	shown    the shown token leads to the call no more      due
//	each     the user leaves, and sees what to do           shown
//
// While the user sees a question the hint is not shown.
type hint uint8

const (
	notDue hint = iota
	due
	shown
)

// A place saves where a call is, and tells the user how to resume the call. It belongs to one goroutine.
type place struct {
	find        func() (client.State, bool) // where the call is; false: its response has come
	asking      func() bool                 // reports whether the user sees a question
	resumeFlags string
	nameFlags   string
	token       bool
	ends        bool
	display     *terminal.Display
	saved       *SavedCall // nil: nothing is saved
	savedAt     time.Time
	hasToken    bool             // the saved state has the call's resume token
	later       <-chan time.Time // fires when to save next; nil: at the next change
	long        *time.Timer      // fires when the call takes long
	hint        hint
	hinted      string // the server's token in the command that was shown last, with the id that it is for; "": the command has none
}

func newPlace(opts *Options, find func() (client.State, bool), asking func() bool) *place {
	return &place{
		find: find, asking: asking, resumeFlags: opts.ResumeFlags, nameFlags: opts.NameFlags, token: opts.ShowToken, ends: opts.Ends, display: opts.Display, saved: opts.Saved,
		long: time.NewTimer(hintAfter),
	}
}

// stop stops the place's timer.
func (p *place) stop() { p.long.Stop() }

// save saves where the call is. If it has done so within [saveEvery], it does so later,
// unless the call has got a resume token since.
func (p *place) save() {
	s, ok := p.find()
	if !ok || checkState(s) != nil {
		return
	}
	hasToken := s.Calls[0].Token != ""
	if wait := saveEvery - time.Since(p.savedAt); wait > 0 && p.saved.isSaved() && hasToken == p.hasToken {
		p.later = time.After(wait)
		return
	}
	p.later, p.savedAt, p.hasToken = nil, time.Now(), hasToken
	if err := p.saved.save(s); err != nil {
		p.display.Printf("holdfast: the call cannot be saved: %v", err)
		p.saved.close(false)
		p.saved = nil
	}
	p.showHint(s)
}

// late notes that the call takes long.
func (p *place) late() {
	if p.hint == notDue {
		p.hint = due
	}
	if s, ok := p.find(); ok {
		p.showHint(s)
	}
}

// restart begins to wait for hintAfter again.
func (p *place) restart() {
	if p.hint == due {
		p.hint = notDue
	}
	p.long.Reset(hintAfter)
}

// showHint shows the command that resumes the call, if the user must see it now. A call of 2026-07-28 that is answered a question is found by
// another token from then on: by the token of before, the call would be made a second time.
func (p *place) showHint(s client.State) {
	command, text := p.commandFor(s), "If this is interrupted, resume with: %s"
	if p.hinted != "" && s.Calls[0].Token != "" && p.hinted != tokenIn(s) {
		p.hint, text = due, "From now on, resume with: %s"
	}
	now := p.hint == due || p.hint == notDue && !p.saved.isSaved() && s.Calls[0].Token != ""
	if now && command != "" && !p.asking() {
		p.display.Printf(text, command)
		p.shows(s)
	}
}

// shows notes that the user sees the command that resumes the call.
func (p *place) shows(s client.State) {
	p.hint, p.hinted = shown, ""
	if p.token || !p.saved.isSaved() {
		p.hinted = tokenIn(s)
	}
}

// tokenIn returns the server's token of the call of a state, with the id that the token is for; "" if it has none.
func tokenIn(s client.State) string {
	call := s.Calls[0]
	if call.Token == "" {
		return ""
	}
	return string(call.Wire) + " " + call.Token
}

// command returns the command that resumes the call; "" if nothing does.
func (p *place) command() string {
	s, ok := p.find()
	if !ok {
		return ""
	}
	return p.commandFor(s)
}

// commandFor returns the command that resumes the call: by its name here, if it has one, or else by its token. It is "" if the call cannot be
// found again.
func (p *place) commandFor(s client.State) string {
	token := Token(s)
	switch {
	case token == "" || p.ends:
		return ""
	case !p.token && p.saved.isSaved():
		return p.named()
	}
	return "holdfast resume " + token + p.resumeFlags
}

// named returns the command that resumes the call by its name.
func (p *place) named() string {
	return "holdfast resume " + p.saved.Name() + p.nameFlags + p.resumeFlags
}

// whereItIs saves where the call is, and returns a text about that for a user who leaves the call.
func (p *place) whereItIs(name string) string {
	p.hint = shown
	if s, ok := p.find(); ok && checkState(s) == nil {
		_ = p.saved.save(s)
		p.shows(s)
	}
	command := p.command()
	switch {
	case command != "":
		return fmt.Sprintf("%s continues at the server. Resume with: %s", name, command)
	case p.saved.isSaved():
		return fmt.Sprintf("%s was sent. Resume with: %s", name, p.named())
	}
	return fmt.Sprintf("%s continues at the server, which offers no way to resume it.", name)
}
