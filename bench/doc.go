// Package bench measures Holdfast's handler beside go-sdk's own and bare net/http. These benchmarks
// run both ends in one process: good for allocations and profiles. The figures of a server alone,
// and mcp-go's, come from peers/compare.
package bench
