package tools

import (
	"encoding/json"
	"net/http"
	"runtime"
)

// Stats are the figures that a process gives of itself. Sizes are in bytes.
type Stats struct {
	Goroutines int    `json:"goroutines"`
	HeapInuse  uint64 `json:"heap_inuse"`
	StackInuse uint64 `json:"stack_inuse"`
	HeapAlloc  uint64 `json:"heap_alloc"`
}

// ServeStats answers GET /bench/stats: the process's [Stats], with gc=1 after two collections (one
// does not yet free objects with a finalizer or in a pool).
func ServeStats(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("gc") == "1" {
		runtime.GC()
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	w.Header().Set("Content-Type", "application/json")
	// An error here means that the client has gone.
	_ = json.NewEncoder(w).Encode(Stats{
		Goroutines: runtime.NumGoroutine(),
		HeapInuse:  m.HeapInuse,
		StackInuse: m.StackInuse,
		HeapAlloc:  m.HeapAlloc,
	})
}
