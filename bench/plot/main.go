// Plot draws bench/results/compare.svg from compare.md: the CPU of each operation for Holdfast and
// its peers. The same figures give the same picture.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	dir := filepath.Join("bench", "results")
	table, err := os.ReadFile(filepath.Join(dir, "compare.md"))
	if err == nil {
		var picture []byte
		if picture, err = draw(table); err == nil {
			err = os.WriteFile(filepath.Join(dir, "compare.svg"), picture, 0o644) //nolint:gosec // it is for everybody
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "plot:", err)
		os.Exit(1)
	}
}

// A row is a server with its CPU for each operation in µs; 0: not measured.
type row struct {
	name  string
	costs [4]float64
}

// parse reads the first table, with the CPU for each operation.
func parse(table []byte) (titles []string, rows []row, err error) {
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case len(cells) != 5:
			if rows != nil {
				return titles, rows, nil
			}
		case titles == nil:
			titles = cells[1:]
		case strings.HasPrefix(cells[0], "---"):
		default:
			r := row{name: strings.TrimSpace(cells[0])}
			for i, c := range cells[1:] {
				number, _, _ := strings.Cut(strings.TrimSpace(c), " ")
				if number == "" {
					continue
				}
				if r.costs[i], err = strconv.ParseFloat(number, 64); err != nil {
					return nil, nil, fmt.Errorf("%s: %w", r.name, err)
				}
			}
			rows = append(rows, r)
		}
	}
	if rows == nil {
		return nil, nil, fmt.Errorf("there is no table of costs")
	}
	return titles, rows, nil
}

const style = `<style>
text{font:12px system-ui,sans-serif;fill:#1f2328}
.t{font-weight:600}.n{fill:#59636e}
.b{fill:#afb8c1}.h{fill:#0969da}
@media (prefers-color-scheme:dark){text{fill:#f0f6fc}.n{fill:#9198a1}.b{fill:#4b535d}.h{fill:#4493f8}}
</style>
`

// draw makes a panel for each operation, with a bar for each server.
func draw(table []byte) ([]byte, error) {
	const width, left, bar, line = 760, 210, 420, 20
	titles, rows, err := parse(table)
	if err != nil {
		return nil, err
	}
	var body bytes.Buffer
	y := 24
	for i, title := range titles {
		most := 0.0
		for _, r := range rows {
			most = max(most, r.costs[i])
		}
		fmt.Fprintf(&body, `<text class="t" x="8" y="%d">%s, µs of server CPU</text>`+"\n", y, strings.TrimSpace(title))
		y += 8
		for _, r := range rows {
			if r.costs[i] == 0 {
				continue
			}
			class := "b"
			if strings.HasPrefix(r.name, "Holdfast") {
				class = "h"
			}
			long := max(r.costs[i]/most*bar, 1)
			fmt.Fprintf(&body, `<text x="%d" y="%d" text-anchor="end">%s</text>`, left-8, y+14, r.name)
			fmt.Fprintf(&body, `<rect class="%s" x="%d" y="%d" width="%.1f" height="14" rx="2"/>`, class, left, y+3, long)
			fmt.Fprintf(&body, `<text class="n" x="%.1f" y="%d">%s</text>`+"\n", left+long+6, y+14, strconv.FormatFloat(r.costs[i], 'f', -1, 64))
			y += line
		}
		y += 24
	}
	var all bytes.Buffer
	fmt.Fprintf(&all, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title">`+"\n", width, y-16, width, y-16)
	all.WriteString(`<title id="title">Server CPU for each operation: Holdfast, its peers and bare net/http. Shorter is better.</title>` + "\n" + style)
	all.Write(body.Bytes())
	all.WriteString("</svg>\n")
	return all.Bytes(), nil
}
