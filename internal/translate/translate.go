// Package translate is a backend over a backend: it gives both eras of the protocol to one
// that speaks only legacy revisions, or only modern ones (docs/decisions/0024-two-eras.md).
package translate
