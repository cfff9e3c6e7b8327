package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"holdfast/bench/tools"
)

// figures has the measured values: by operation, then by subject.
type figures struct {
	rounds map[string]map[string][]float64
	memory map[string]map[string]memory
	lost   map[string]int // lost events, by subject and operation
}

// memory is the memory of one session or call, in bytes: of the spans and stacks in use, and of the
// live objects and stacks.
type memory struct{ inUse, alive, goroutines float64 }

func newFigures() figures {
	return figures{
		rounds: make(map[string]map[string][]float64),
		memory: make(map[string]map[string]memory),
		lost:   make(map[string]int),
	}
}

// add adds the figure of one round.
func (f figures) add(what, subject string, v float64) {
	if f.rounds[what] == nil {
		f.rounds[what] = make(map[string][]float64)
	}
	f.rounds[what][subject] = append(f.rounds[what][subject], v)
}

// lose notes events that never came.
func (f figures) lose(what, subject string, n int) { f.lost[subject+": "+what] += n }

// addMemory adds the memory of one session or call, from the memory before and after n of them
// began.
func (f figures) addMemory(what, subject string, before, after tools.Stats, n int) {
	if f.memory[what] == nil {
		f.memory[what] = make(map[string]memory)
	}
	each := func(of func(tools.Stats) float64) float64 { return (of(after) - of(before)) / float64(n) }
	f.memory[what][subject] = memory{
		inUse:      each(func(s tools.Stats) float64 { return float64(s.HeapInuse + s.StackInuse) }),
		alive:      each(func(s tools.Stats) float64 { return float64(s.HeapAlloc + s.StackInuse) }),
		goroutines: each(func(s tools.Stats) float64 { return float64(s.Goroutines) }),
	}
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// spread returns how far apart the rounds of a figure lie, as a part of its median, for the worst
// figure.
func (f figures) spread() (worst float64) {
	for _, by := range f.rounds {
		for _, v := range by {
			if median(v) == 0 {
				continue
			}
			worst = max(worst, (slices.Max(v)-slices.Min(v))/median(v))
		}
	}
	return worst
}

// print writes the report. Figures are also given as multiples of the first subject's in the same
// column, or, for sseCall, in plainCall's.
func (f figures) print(w io.Writer, rounds int) error {
	var b strings.Builder
	floor := subjects[0].name
	f.head(&b, rounds, fmt.Sprintf("%d clients", callers))
	rows := make([]string, len(subjects))
	for i := range subjects {
		rows[i] = subjects[i].name
	}

	b.WriteString("Server CPU in µs per operation, and as a multiple of the floor's in the same column " +
		"(of its plain call for the SSE call):\n\n")
	table(&b, rows, []string{plainCall, newCall, taskCall, sseCall, liveEvent, oldEvent}, func(what, subject string) string {
		v := median(f.rounds[what][subject])
		if v == 0 {
			return ""
		}
		base := what
		if what == sseCall {
			base = plainCall
		}
		return fmt.Sprintf("%.2f (%.2f ×)", v, v/median(f.rounds[base][floor]))
	})

	if len(f.memory) > 0 {
		b.WriteString("\nMemory after collection, bytes each: heap spans and stacks in use / objects alive and stacks (goroutines each):\n\n")
		table(&b, rows, []string{idleSession, waitingCall, leftCall}, f.memoryCell)
	}
	for _, what := range slices.Sorted(maps.Keys(f.lost)) {
		fmt.Fprintf(&b, "\nLost: %s: %d\n", what, f.lost[what])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f figures) memoryCell(what, subject string) string {
	m, ok := f.memory[what][subject]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%.0f / %.0f (%.1f)", m.inUse, m.alive, m.goroutines)
}

// head writes the machine, the clients (who), and the number and spread of the rounds.
func (f figures) head(b *strings.Builder, rounds int, who string) {
	fmt.Fprintf(b, "%s, %d CPUs (%s), %s, median of %d interleaved rounds (which lie up to %.0f %% apart).\n\n",
		runtime.Version(), runtime.NumCPU(), cpuModel(), who, rounds, 100*f.spread())
}

// table writes a row for each name with a cell that is not empty.
func table(b *strings.Builder, names, columns []string, cell func(what, name string) string) {
	fmt.Fprintf(b, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, name := range names {
		row := make([]string, len(columns))
		for j, what := range columns {
			row[j] = cell(what, name)
		}
		if strings.Join(row, "") != "" {
			fmt.Fprintf(b, "| %s | %s |\n", name, strings.Join(row, " | "))
		}
	}
}

// cpuModel returns the model of the machine's CPU, or its architecture if the model is not known.
func cpuModel() string {
	data, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(data)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}
