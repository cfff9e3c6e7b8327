package main

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
)

// This file measures short calls more exactly than [measureCPU] does. Rounds are short and many, and a
// figure is compared only with others of its round: the median of the ratios counts. So changes in the
// load of the machine matter little.

// turnCalls are the short calls that servers do not store, so that the same servers can run in all
// rounds.
var turnCalls = []string{plainCall, newCall, taskCall}

// turnLength is how many calls a client makes in a turn: enough for garbage collections, a part of a
// call's cost, in each turn.
const turnLength = 125

// turns measures the short calls of all subjects in turns, and prints a comparison.
func turns(w io.Writer, dir string, rounds int) (err error) {
	var lanes []*lane
	defer func() {
		for _, l := range lanes {
			hangUp(l.cs)
		}
	}()
	for i := range subjects {
		s := &subjects[i]
		if s.plain == "" {
			continue
		}
		p, err := start(filepath.Join(dir, binary(s.server)), s.args...)
		if err != nil {
			return err
		}
		defer p.stop()
		for _, what := range turnCalls {
			if s.path(what) == "" {
				continue
			}
			l, err := newLane(s, p, what)
			if err != nil {
				return err
			}
			lanes = append(lanes, l)
		}
	}
	f := newFigures()
	for range rounds {
		rand.Shuffle(len(lanes), func(i, j int) { lanes[i], lanes[j] = lanes[j], lanes[i] })
		for _, l := range lanes {
			if err := l.measure(f, func(n int) bool { return n < turnLength }); err != nil {
				return err
			}
		}
	}
	return f.printTurns(w, rounds)
}

// printTurns writes the CPU of calls, and the ratios of figures of the same round.
func (f figures) printTurns(w io.Writer, rounds int) error {
	var b strings.Builder
	f.head(&b, rounds, fmt.Sprintf("%d clients", callers))
	floor := subjects[0].name
	rows := make([]string, len(subjects))
	twins := make(map[string]string)
	for i := range subjects {
		rows[i] = subjects[i].name
		twins[rows[i]] = subjects[i].twin
	}
	b.WriteString("Server CPU in µs per call: the median of all rounds, and the median of its ratios to the floor's of the same round and column.\n\n")
	table(&b, rows, turnCalls, func(what, subject string) string {
		v := f.rounds[what][subject]
		if v == nil {
			return ""
		}
		return fmt.Sprintf("%.1f (%.2f ×)", median(v), median(ratios(v, f.rounds[what][floor])))
	})
	b.WriteString("\nThe same as a multiple of another Holdfast's of the same round: the median of the ratios, and between which half of them lie.\n\n")
	var pairs []string
	for _, name := range rows {
		if twins[name] != "" && slices.Contains(rows, twins[name]) {
			pairs = append(pairs, name)
		}
		if was := beforeName(name); slices.Contains(rows, was) {
			twins[name+" / before"] = was
			pairs = append(pairs, name+" / before")
		}
	}
	table(&b, pairs, turnCalls, func(what, pair string) string {
		name := strings.TrimSuffix(pair, " / before")
		v := f.rounds[what][name]
		if v == nil || f.rounds[what][twins[pair]] == nil {
			return ""
		}
		r := slices.Sorted(slices.Values(ratios(v, f.rounds[what][twins[pair]])))
		return fmt.Sprintf("%.3f × (%.2f to %.2f)", median(r), r[len(r)/4], r[3*len(r)/4])
	})
	_, err := io.WriteString(w, b.String())
	return err
}

// ratios returns a/b, round by round.
func ratios(a, b []float64) []float64 {
	r := make([]float64, min(len(a), len(b)))
	for i := range r {
		r[i] = a[i] / b[i]
	}
	return r
}
