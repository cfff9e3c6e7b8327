package terminal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Prompter asks the user at a terminal the questions of a server (2025-11-25, Elicitation).
// It asks one question at a time.
type Prompter struct {
	in   *lines
	out  io.Writer
	from string // name of the server
	echo bool   // write the lines that are read: no terminal shows them
}

// NewPrompter returns a Prompter that writes questions of the server from to out, and reads
// the answers from in.
func NewPrompter(in io.Reader, out io.Writer, from string) *Prompter {
	return &Prompter{in: &lines{in: bufio.NewReader(in), got: make(chan line, 1)}, out: out, from: from, echo: !IsTerminal(in)}
}

// An elicitation is a question of a server.
type elicitation struct {
	Mode            string          `json:"mode"`
	Message         string          `json:"message"`
	RequestedSchema json.RawMessage `json:"requestedSchema"`
	URL             string          `json:"url"`
}

// An answer is the result of an elicitation.
type answer struct {
	Action  string                     `json:"action"`           // accept, decline or cancel
	Content map[string]json.RawMessage `json:"content,omitzero"` // an accepted form has it, also without a field
}

// ErrWithdrawn says that the server does not want the answer any more.
var ErrWithdrawn = errors.New("the server has withdrawn the question")

// Ask asks the user, and returns the result for the server. It fails when ctx ends, with the
// cause of that, or when the input cannot be read.
func (p *Prompter) Ask(ctx context.Context, params []byte) (json.RawMessage, error) {
	var e elicitation
	if err := json.Unmarshal(params, &e); err != nil {
		fmt.Fprintf(p.out, "%s asks something that holdfast cannot read: declined\n", p.from)
		return result(answer{Action: "decline"})
	}
	fmt.Fprintf(p.out, "%s asks: %s\n", p.from, strings.TrimSpace(e.Message))
	var a answer
	var err error
	if e.Mode == "url" || e.URL != "" && e.RequestedSchema == nil {
		a, err = p.openURL(ctx, e.URL)
	} else {
		a, err = p.form(ctx, &e)
	}
	switch {
	case errors.Is(err, io.EOF):
		fmt.Fprintln(p.out, "(declined)")
		return result(answer{Action: "decline"})
	case err != nil:
		return nil, err
	}
	return result(a)
}

func result(a answer) (json.RawMessage, error) { return json.Marshal(a) }

// openURL asks the user to open a URL (URL mode). holdfast does not open it: the user sees
// where it leads.
func (p *Prompter) openURL(ctx context.Context, to string) (answer, error) {
	fmt.Fprintf(p.out, "  Open %s\n", OneLine(to))
	yes, err := p.confirm(ctx, "  Will you open it?")
	if err != nil || !yes {
		return answer{Action: "decline"}, err
	}
	return answer{Action: "accept"}, nil
}

// Consents asks a question of holdfast's own with the answers yes and no; an empty line is no. It fails
// when ctx ends, with the cause of that, or when the input cannot be read.
func (p *Prompter) Consents(ctx context.Context, what string) (bool, error) {
	text, err := p.read(ctx, what+" [y/N]: ")
	if errors.Is(err, io.EOF) {
		return false, nil
	}
	yes, _ := yesOrNo(text)
	return yes, err
}

// confirm asks a question with the answers yes and no.
func (p *Prompter) confirm(ctx context.Context, what string) (bool, error) {
	for {
		text, err := p.read(ctx, what+" [Y/n]: ")
		if err != nil {
			return false, err
		}
		if text == "" {
			return true, nil
		}
		if yes, ok := yesOrNo(text); ok {
			return yes, nil
		}
		fmt.Fprintln(p.out, "  (want yes or no)")
	}
}

// form asks for each field of a schema.
func (p *Prompter) form(ctx context.Context, e *elicitation) (answer, error) {
	fields := fieldsOf(e.RequestedSchema)
	if len(fields) == 0 {
		yes, err := p.confirm(ctx, "  Yes?")
		if err != nil || !yes {
			return answer{Action: "decline"}, err
		}
		return answer{Action: "accept", Content: map[string]json.RawMessage{}}, nil
	}
	if slices.ContainsFunc(fields, func(f field) bool { return f.Default != nil || !f.required }) {
		fmt.Fprintln(p.out, "  (an empty line takes what is in brackets; Ctrl-D declines)")
	} else {
		fmt.Fprintln(p.out, "  (Ctrl-D declines)")
	}
	a := answer{Action: "accept", Content: make(map[string]json.RawMessage)}
	for _, f := range fields {
		if f.Description == e.Message {
			f.Description = "" // the user has read it
		}
		value, err := p.fill(ctx, f)
		if err != nil {
			return a, err
		}
		if value != nil {
			a.Content[f.name] = value
		}
	}
	return a, nil
}

// fill asks for one field until the answer is valid. It returns nil if the user leaves the
// field out.
func (p *Prompter) fill(ctx context.Context, f field) (json.RawMessage, error) {
	label := "  " + OneLine(f.label())
	if about := OneLine(f.Description); about != "" && about != OneLine(f.label()) {
		label += " (" + about + ")"
	}
	if choices := f.choices(); len(choices) > 0 {
		fmt.Fprintln(p.out, label)
		for i, c := range choices {
			fmt.Fprintf(p.out, "    %d) %s\n", i+1, OneLine(c.title))
		}
		label = "  Which?"
		if f.many() {
			label = "  Which? Several with commas"
		}
	}
	if hint := OneLine(f.hint()); hint != "" {
		label += " [" + hint + "]"
	}
	for {
		text, err := p.read(ctx, label+": ")
		if err != nil {
			return nil, err
		}
		if text == "" {
			switch {
			case f.Default != nil:
				return f.Default, nil
			case !f.required:
				return nil, nil
			case f.kind() != "string" || len(f.choices()) > 0 || f.minLength() > 0:
				fmt.Fprintln(p.out, "  (a value is required)")
				continue
			}
		}
		value, err := f.parse(text)
		if err == nil {
			return value, nil
		}
		fmt.Fprintf(p.out, "  (%v)\n", err)
	}
}

// read prompts for one line.
func (p *Prompter) read(ctx context.Context, prompt string) (string, error) {
	fmt.Fprint(p.out, prompt)
	text, err := p.in.next(ctx)
	text = strings.TrimSpace(text)
	switch {
	case err != nil:
		fmt.Fprintln(p.out) // ends the line of the prompt
	case p.echo:
		fmt.Fprintln(p.out, OneLine(text))
	}
	return text, err
}

// lines reads the lines that a user types. A read cannot be cancelled: the line that it
// returns late is the next one. It has one caller at a time.
type lines struct {
	in      *bufio.Reader
	got     chan line
	pending bool
}

type line struct {
	text string
	err  error
}

func (l *lines) next(ctx context.Context) (string, error) {
	if !l.pending {
		l.pending = true
		go func() {
			text, err := l.in.ReadString('\n')
			if text != "" {
				err = nil // the last line may have no end
			}
			l.got <- line{text, err}
		}()
	}
	select {
	case got := <-l.got:
		l.pending = false
		return got.text, got.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
