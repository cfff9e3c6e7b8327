package terminal

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// A Display shows on stderr how a call goes: with a bar on a terminal, else with
// a line for each step. Its methods may be called concurrently.
type Display struct {
	w   io.Writer
	tty bool

	mu     sync.Mutex
	bar    *progressbar.ProgressBar
	total  float64 // that the bar was made for; 0: not known
	text   string  // beside the bar
	at     int64   // its ticks
	drawn  time.Time
	ticker *time.Ticker // draws again: time passes, also where nothing is said
	ended  bool
	hidden bool   // a question is being asked
	held   []byte // what was to be printed meanwhile
}

// A Step is a progress notification's params.
type Step struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

func NewDisplay(w io.Writer) *Display {
	return &Display{w: w, tty: IsTerminal(w)}
}

// TTY reports whether the display is on a terminal.
func (d *Display) TTY() bool { return d.tty }

// Write prints lines, above the bar. It makes a display the place for the log.
func (d *Display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hidden && d.tty {
		d.held = append(d.held, p...)
		return len(p), nil
	}
	d.clear()
	defer d.draw()
	return d.w.Write(p)
}

// Printf prints a line, above the bar.
func (d *Display) Printf(format string, args ...any) {
	fmt.Fprintf(d, format+"\n", args...)
}

// Progress shows a step.
func (d *Display) Progress(s Step) {
	s.Message = OneLine(s.Message)
	if !d.tty {
		d.Printf("%s", s)
		return
	}
	at := int64(s.Progress)
	if s.Total > 0 {
		// The last tick is the result's.
		at = int64(math.Max(0, math.Min(s.Progress/s.Total*ticks, ticks-1)))
	}
	d.set(s.Total, at, strings.TrimPrefix(s.String(), "progress "))
}

// Wait shows that something is waited for that has not said how far it is.
func (d *Display) Wait(what string) {
	d.mu.Lock()
	started := d.bar != nil
	d.mu.Unlock()
	if d.tty && !started {
		d.set(0, 0, what)
	}
}

// drawEvery is how often a bar is drawn, at the most and while nothing changes.
const drawEvery = 100 * time.Millisecond

func (d *Display) set(total float64, at int64, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return
	}
	if d.bar == nil || d.total != total {
		d.clear()
		d.bar, d.total, d.drawn = d.newBar(total), total, time.Time{}
	}
	d.at, d.text = at, text
	if d.ticker == nil {
		d.ticker = time.NewTicker(drawEvery)
		go d.redraw(d.ticker)
	}
	if time.Since(d.drawn) >= drawEvery {
		d.draw()
	}
}

// redraw draws until the bar is taken away.
func (d *Display) redraw(t *time.Ticker) {
	for range t.C {
		d.mu.Lock()
		ended := d.ended
		d.draw()
		d.mu.Unlock()
		if ended {
			return
		}
	}
}

// String is the step as a line.
func (s Step) String() string {
	text := "progress " + number(s.Progress)
	if s.Total > 0 {
		text += "/" + number(s.Total)
	}
	return strings.TrimSpace(text + " " + s.Message)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ticks is how finely a bar is divided.
const ticks = 1000

func (d *Display) newBar(total float64) *progressbar.ProgressBar {
	most := int64(ticks)
	if total <= 0 {
		most = -1 // a spinner
	}
	return progressbar.NewOptions64(most,
		progressbar.OptionSetWriter(control(d.w)),
		progressbar.OptionSetWidth(barWidth),
		progressbar.OptionSetPredictTime(total > 0),
		progressbar.OptionSetElapsedTime(true),
		progressbar.OptionShowDescriptionAtLineEnd(),
		progressbar.OptionSetRenderBlankState(false),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetSpinnerChangeInterval(0), // redraw does that
	)
}

// barWidth is the width of a bar in columns, and besideBar that of what is drawn
// with it but the text.
const (
	barWidth  = 24
	besideBar = barWidth + 28
)

// draw shows the bar, if there is one. d.mu is held.
func (d *Display) draw() {
	if d.bar == nil || d.hidden || d.ended {
		return
	}
	d.drawn = time.Now()
	d.bar.Describe(d.fit(d.text))
	_ = d.bar.Set64(d.at)
}

// fit makes a text as long as there is place for beside the bar.
func (d *Display) fit(text string) string {
	return cut(visible(text), max(columns(d.w)-besideBar, 8))
}

// cut makes a text at most so many letters long.
func cut(text string, most int) string {
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most-1]) + "…"
	}
	return text
}

// clear takes the bar away for what else is to be shown. d.mu is held.
func (d *Display) clear() {
	if d.bar != nil && !d.hidden && !d.ended {
		_ = d.bar.Clear()
		ClearLine(d.w) // a spinner is left there
	}
}

// ClearLine clears the line that the cursor is on, if w is a terminal.
func ClearLine(w io.Writer) {
	if IsTerminal(w) {
		fmt.Fprint(control(w), "\r\033[K")
	}
}

// Pause takes the bar away until Resume, and keeps what else would be printed.
func (d *Display) Pause() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.hidden = true
}

// Resume ends Pause.
func (d *Display) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hidden = false
	_, _ = d.w.Write(d.held)
	d.held = nil
	d.draw()
}

// Close takes the bar away for good.
func (d *Display) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	d.bar, d.ended = nil, true
}

// Notice prints a line in the place of what the terminal shows of Ctrl-C.
func (d *Display) Notice(format string, args ...any) {
	ClearLine(d.w)
	fmt.Fprintf(d.w, format+"\n", args...)
}

// OneLine is a text of a server on one line.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' || r == '\n' }), " ")
}
