package servers

import (
	"net/http"

	"holdfast/internal/auth"
	front "holdfast/internal/server"
	"holdfast/internal/server/exchange"
)

// An Endpoint serves requests for all servers: a *holdfast.Handler.
type Endpoint interface {
	http.Handler
	SSE(messages string) http.Handler
}

// Serves reports whether a server is at a path. pairs is the argument of [Set.Handler].
func (s *Set) Serves(path string, pairs bool) bool {
	at, ok := s.table.Load().routes[path]
	return ok && (at.present().pair == "" || pairs)
}

// Handler returns a handler that serves each server at its path, through one endpoint that
// has the Set as its backend. pairs says that clients of revision 2024-11-05 are served too.
func (s *Set) Handler(to Endpoint, pairs bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		routes := s.table.Load().routes
		found, ok := routes[r.URL.Path]
		at := found.present()
		if len(found.former) > 0 {
			at = s.choose(found, r)
		}
		if !ok || at.pair != "" && !pairs {
			http.NotFound(w, r)
			return
		}
		ctx := front.WithServer(r.Context(), at.server)
		if one := s.table.Load().byName[at.server]; one != nil && at != found.place {
			ctx = exchange.WithMoved(ctx, one.endpoint(at.pair != ""))
		}
		r = r.WithContext(ctx)
		if at.pair != "" {
			pair := to.SSE(at.pair)
			// Clients know the URL of the stream only, and have tokens for that. It may be an
			// endpoint of another server.
			if routes[at.stream].has(at) {
				pair = auth.At(at.stream, pair)
			}
			pair.ServeHTTP(w, r)
			return
		}
		to.ServeHTTP(w, r)
	})
}
