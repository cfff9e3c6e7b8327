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

// A Display shows the progress of a call: on a terminal as a bar, else as a line for each
// step. Its methods may be called concurrently.
type Display struct {
	w   io.Writer
	tty bool

	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	total float64 // of the bar; 0: not known
	text  string  // beside the bar
	at    int64   // ticks of the bar
	drawn time.Time
	stop  chan struct{} // ends redraw; nil: there is no bar yet
	work  sync.WaitGroup
	mode  mode
	held  []byte // bytes that were written while the display was paused
}

// mode is the state of a display:
//
//	mode     event   next mode
//	showing  Pause   paused     a question is on the screen
//	paused   Resume  showing
//	each     Close   closed     the bar is gone for good; lines are still written
type mode uint8

const (
	showing mode = iota
	paused
	closed
)

// A Step is the params of a progress notification.
type Step struct {
	Progress float64 `json:"progress"`
	Total    float64 `json:"total"`
	Message  string  `json:"message"`
}

// NewDisplay returns a Display on w, which is an [Output] or a file.
func NewDisplay(w io.Writer) *Display {
	return &Display{w: w, tty: IsTerminal(w)}
}

// TTY reports whether the display is on a terminal.
func (d *Display) TTY() bool { return d.tty }

// Write writes lines above the bar. The log is written here too.
func (d *Display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == paused && d.tty {
		d.held = append(d.held, p...)
		return len(p), nil
	}
	d.clear()
	defer d.draw()
	return d.w.Write(p)
}

// Printf writes a line above the bar.
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
		// The last tick is for the result.
		at = int64(math.Max(0, math.Min(s.Progress/s.Total*ticks, ticks-1)))
	}
	d.set(s.Total, at, strings.TrimPrefix(s.String(), "progress "))
}

// Wait shows the text what until there is a step.
func (d *Display) Wait(what string) {
	d.mu.Lock()
	started := d.bar != nil
	d.mu.Unlock()
	if d.tty && !started {
		d.set(0, 0, what)
	}
}

// drawEvery is how often a bar is drawn, at the most and at the least.
const drawEvery = 100 * time.Millisecond

func (d *Display) set(total float64, at int64, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == closed {
		return
	}
	if d.bar == nil || d.total != total {
		d.clear()
		d.bar, d.total, d.drawn = d.newBar(total), total, time.Time{}
	}
	d.at, d.text = at, text
	if d.stop == nil {
		d.stop = make(chan struct{})
		d.work.Go(d.redraw)
	}
	if time.Since(d.drawn) >= drawEvery {
		d.draw()
	}
}

// redraw draws the bar until the display is closed: the bar shows the time too.
func (d *Display) redraw() {
	t := time.NewTicker(drawEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			d.mu.Lock()
			d.draw()
			d.mu.Unlock()
		case <-d.stop:
			return
		}
	}
}

// String returns the step as a line.
func (s Step) String() string {
	text := "progress " + number(s.Progress)
	if s.Total > 0 {
		text += "/" + number(s.Total)
	}
	return strings.TrimSpace(text + " " + s.Message)
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// ticks is the number of parts of a bar.
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

// barWidth is the width of a bar in columns. besideBar is the width of all that is drawn with
// the text.
const (
	barWidth  = 24
	besideBar = barWidth + 28
)

// draw draws the bar, if there is one. d.mu is held.
func (d *Display) draw() {
	if d.bar == nil || d.mode != showing {
		return
	}
	d.drawn = time.Now()
	d.bar.Describe(d.fit(d.text))
	_ = d.bar.Set64(d.at)
}

// fit cuts a text to the room beside the bar.
func (d *Display) fit(text string) string {
	return cut(visible(text), max(columns(d.w)-besideBar, 8))
}

// cut cuts a text to a number of letters.
func cut(text string, limit int) string {
	if letters := []rune(text); len(letters) > limit {
		return string(letters[:limit-1]) + "…"
	}
	return text
}

// clear removes the bar, so that other text can be written. d.mu is held.
func (d *Display) clear() {
	if d.bar != nil && d.mode == showing {
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

// Pause removes the bar until Resume. On a terminal, text that is written meanwhile is held.
func (d *Display) Pause() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clear()
	if d.mode == showing {
		d.mode = paused
	}
}

// Resume ends Pause, and writes the text that was held.
func (d *Display) Resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mode == paused {
		d.mode = showing
	}
	_, _ = d.w.Write(d.held)
	d.held = nil
	d.draw()
}

// Close removes the bar for good.
func (d *Display) Close() {
	d.mu.Lock()
	d.clear()
	drawing := d.stop != nil && d.mode != closed
	d.bar, d.mode = nil, closed
	d.mu.Unlock()
	if drawing {
		close(d.stop)
	}
	d.work.Wait()
}

// Notice writes a line in the place of the ^C that a terminal shows.
func (d *Display) Notice(format string, args ...any) {
	ClearLine(d.w)
	fmt.Fprintf(d.w, format+"\n", args...)
}

// OneLine returns a text of a server on one line.
func OneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' || r == '\r' || r == '\n' }), " ")
}
