package config

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

var validPrefix = regexp.MustCompile(`^[A-Za-z0-9_./-]{0,32}$`)

// checkPrefixes makes each merged name belong to one server. Equal prefixes that are made of names get a part
// that differs; other equal prefixes are mistakes.
func (r *reader) checkPrefixes() {
	taken := make(map[string]string)
	for _, s := range r.all {
		if s.Prefix == nil {
			continue
		}
		if is, ok := taken[*s.Prefix]; ok && r.out.Merge {
			r.errs = append(r.errs, s.At.errorf("merged, the servers %q and %q have the same prefix %q: set another with \"prefix\"", is, s.Name, *s.Prefix))
		}
		taken[*s.Prefix] = s.Name
	}
	made := make(map[string]int)
	for _, s := range r.all {
		if s.Prefix == nil {
			made[s.MergedPrefix()]++
		}
	}
	for _, s := range r.all { // a name without unfit characters keeps its prefix
		if p := s.MergedPrefix(); s.Prefix == nil && p == s.Name+"_" && taken[p] == "" {
			taken[p] = s.Name
			made[p] = 2 // so that others differ
		}
	}
	for _, s := range r.all {
		p := s.MergedPrefix()
		if s.Prefix != nil || made[p] < 2 && taken[p] == "" || taken[p] == s.Name {
			continue
		}
		of := sha256.Sum256([]byte(s.Name))
		sum := hex.EncodeToString(of[:])
		for n := 4; s.merged == "" || taken[s.merged] != "" || made[s.merged] > 0; n++ {
			s.merged = p[:min(len(p)-1, 30-n)] + "_" + sum[:n] + "_"
		}
		taken[s.merged] = s.Name
	}
}

// unfit matches characters that names of tools must not have.
var unfit = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// MergedPrefix returns the prefix that the names of the server's tools and prompts have where
// all servers are served as one.
func (s *Server) MergedPrefix() string {
	if s.Prefix != nil {
		return *s.Prefix
	}
	if s.merged != "" {
		return s.merged
	}
	name := unfit.ReplaceAllString(s.Name, "_")
	return name[:min(len(name), 31)] + "_"
}
