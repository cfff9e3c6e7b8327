package torture

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// MarshalJSON implements [json.Marshaler].
func (s Seconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", time.Duration(s).Seconds()), nil
}

func (s Seconds) String() string {
	d := time.Duration(s)
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}

// A Report has the results of the calls.
type Report struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
	Call      Seconds         `json:"call"` // how long a call takes without a cut
	Seed      uint64          `json:"seed"`
	Clients   int             `json:"clients"`
	Restarts  bool            `json:"restarts"` // the server's processes were killed
	Ways      []*Tally        `json:"ways"`
}

// A Count counts calls by their result. Each call is in one of Results, Told, Lost and Hung, and may be in Twice too.
type Count struct {
	Calls   int `json:"calls"`
	Results int `json:"results"`
	Told    int `json:"told"`  // the client was told that the server's process, which had the call, was killed
	Lost    int `json:"lost"`  // the client got another error in place of the result
	Twice   int `json:"twice"` // the server got the call more than once
	Hung    int `json:"hung"`  // the client got neither a result nor an error
}

// A Tally has the results of the calls that were made in one way.
type Tally struct {
	Way  string  `json:"way"`
	Took Seconds `json:"took"`
	Count
	// Recovered is the time from a disturbance to the client's next result: that of the call, or of a later one.
	Recovered struct {
		Median Seconds `json:"median"`
		Worst  Seconds `json:"worst"`
	} `json:"recovered_after"`
	// Kinds are the counts for each kind of disturbance.
	Kinds map[string]*Count `json:"kinds"`
	// Errors counts the errors in place of a result, by kind and text.
	Errors map[string]int `json:"errors"`

	times []time.Duration
}

// An outcome is the result of one call: none of told, lost and hung is set if the client got a result.
type outcome struct {
	told, lost, hung bool
	twice            bool
	why              error
	recovered        time.Duration // 0: the call was not disturbed
}

func (t *Tally) add(k kind, o outcome) {
	of := t.Kinds[k.String()]
	if of == nil {
		of = &Count{}
		t.Kinds[k.String()] = of
	}
	for _, c := range []*Count{&t.Count, of} {
		c.Calls++
		switch {
		case o.told:
			c.Told++
		case o.lost:
			c.Lost++
		case o.hung:
			c.Hung++
		default:
			c.Results++
		}
		if o.twice {
			c.Twice++
		}
	}
	if o.why != nil {
		if t.Errors == nil {
			t.Errors = make(map[string]int)
		}
		text := k.String() + ": " + o.why.Error()
		if len(t.Errors) < 100 || t.Errors[text] > 0 {
			t.Errors[text]++
		}
	}
	if o.recovered > 0 {
		t.times = append(t.times, o.recovered)
	}
}

// sum computes the times of Recovered, after the last call.
func (t *Tally) sum() {
	if slices.Sort(t.times); len(t.times) > 0 {
		t.Recovered.Median, t.Recovered.Worst = Seconds(t.times[len(t.times)/2]), Seconds(t.times[len(t.times)-1])
	}
}

// Whole reports whether no call with Holdfast at both ends was lost, ran twice or hung.
func (r *Report) Whole() bool {
	for _, t := range r.Ways {
		if t.Way == Both {
			return t.Calls > 0 && t.Lost == 0 && t.Twice == 0 && t.Hung == 0
		}
	}
	return false
}

// Write writes the report for a person.
func (r *Report) Write(to io.Writer) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tcalls\tresults\ttold\tlost\ttwice\thung\trecovered after (worst)")
	for _, t := range r.Ways {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s (%s)\n", t.Way, t.Calls, t.Results, t.Told, t.Lost, t.Twice, t.Hung, t.Recovered.Median, t.Recovered.Worst)
	}
	fmt.Fprint(w, "\nresults / calls")
	for _, t := range r.Ways {
		fmt.Fprint(w, "\t"+t.Way)
	}
	fmt.Fprintln(w)
	for k := clean; k <= lastKind; k++ {
		cells, any := make([]string, len(r.Ways)), false
		for i, t := range r.Ways {
			c := t.Kinds[k.String()]
			if c == nil {
				cells[i] = "-"
				continue
			}
			any = true
			cells[i] = fmt.Sprintf("%d / %d", c.Results, c.Calls)
			for _, more := range []struct {
				n    int
				name string
			}{{c.Told, "told"}, {c.Hung, "hung"}, {c.Twice, "twice"}} {
				if more.n > 0 {
					cells[i] += fmt.Sprintf(", %d %s", more.n, more.name)
				}
			}
		}
		if any {
			fmt.Fprintln(w, k.String()+"\t"+strings.Join(cells, "\t"))
		}
	}
	return w.Flush()
}
