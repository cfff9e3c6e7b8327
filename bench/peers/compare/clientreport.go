package main

import (
	"fmt"
	"io"
	"strings"
)

// printClients writes the report on clients.
func (f figures) printClients(w io.Writer, rounds int) error {
	var b strings.Builder
	f.head(&b, rounds, fmt.Sprintf("%d concurrent callers", callers))
	rows := make([]string, len(clientKinds))
	for i, k := range clientKinds {
		rows[i] = k.name
	}

	b.WriteString("Client CPU in µs per call, and as a multiple of the go-sdk's in the same column. ")
	b.WriteString("Of the light server, whose answers are there before:\n\n")
	table(&b, rows, []string{"JSON", "SSE", "SSE, 100 events"}, f.clientCell)
	b.WriteString("\nOf real servers:\n\n")
	table(&b, rows, names(clientScenes[3:]), f.clientCell)

	b.WriteString("\nObjects allocated per call, and KB:\n\n")
	table(&b, rows, names(clientScenes), func(what, client string) string {
		if f.rounds[what][client] == nil {
			return ""
		}
		return fmt.Sprintf("%.0f, %.1f", median(f.rounds[what+allocs][client]), median(f.rounds[what+allocated][client]))
	})

	fmt.Fprintf(&b, "\nA resumed call, in µs: one that is not cut, one that is cut after its first event, and what the cut costs "+
		"(of the latency without the %v that the server asks to wait):\n\n", resumeWait)
	table(&b, rows, []string{resumeClientCPU, resumeServerCPU, resumeLatency}, func(what, client string) string {
		whole, cut := median(f.rounds[what][client]), median(f.rounds[what+cutTwin][client])
		if whole == 0 {
			return ""
		}
		more := cut - whole
		if what == resumeLatency {
			more -= float64(resumeWait.Microseconds())
		}
		return fmt.Sprintf("%.0f, %.0f: %+.0f", whole, cut, more)
	})

	if len(f.memory) > 0 {
		b.WriteString("\nMemory after collection, bytes for each waiting call: heap spans and stacks in use / objects alive and stacks (goroutines each):\n\n")
		table(&b, rows, []string{waitingCall}, f.memoryCell)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f figures) clientCell(what, client string) string {
	v := median(f.rounds[what][client])
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f (%.2f ×)", v, v/median(f.rounds[what][sdkClient]))
}

func names(scenes []scene) []string {
	all := make([]string, len(scenes))
	for i := range scenes {
		all[i] = scenes[i].name
	}
	return all
}
