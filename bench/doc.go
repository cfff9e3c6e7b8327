// Package bench measures Holdfast's handler beside go-sdk's own and bare
// net/http. These benchmarks run both ends in one process: good for allocations
// and profiles. What a server spends by itself, and mcp-go's figures, come from
// peers/compare.
package bench
