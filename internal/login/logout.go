package login

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// Logout makes the authorization server revoke the tokens of a server (RFC 7009), if it can, and removes them from the directory of the
// options. Without a client in the options, all clients of the server are logged out. It returns how many were logged in. The error is of the
// first token that the authorization server may still take: it is removed here all the same.
func Logout(ctx context.Context, server string, opts *Options) (int, error) {
	s, err := New(server, opts)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if s.opts.Dir == "" {
		return 0, errors.New("no tokens are kept: --logins is empty")
	}
	files := []string{s.store.file}
	if s.opts.ClientID == "" && s.opts.ClientMetadata == "" {
		entries, err := os.ReadDir(s.opts.Dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		files = nil
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefixOf(s.server.String())+"-") && strings.HasSuffix(e.Name(), ".json") {
				files = append(files, filepath.Join(s.opts.Dir, e.Name()))
			}
		}
	}
	ended := 0
	for _, file := range files {
		s.store.file = file
		had, wrong := s.logout(ctx)
		if had {
			ended++
		}
		if err == nil {
			err = wrong
		}
	}
	return ended, err
}

// logout ends the login of the store.
func (s *Source) logout(ctx context.Context) (bool, error) {
	unlock, err := s.store.lock(ctx, lockRecord)
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := s.store.load()
	if err != nil {
		return false, err
	}
	if err := os.Remove(s.store.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	had := r.Token.Access != "" || r.Token.Refresh != ""
	if r.Places.Revocation == "" {
		return had, nil
	}
	for hint, value := range map[string]string{"refresh_token": r.Token.Refresh, "access_token": r.Token.Access} {
		if value == "" {
			continue
		}
		wrong := s.post(ctx, r.Places.Revocation, r.Client, r.Places, r.Issuer, url.Values{"token": {value}, "token_type_hint": {hint}}, nil, nil)
		if wrong != nil && !says(wrong, "unsupported_token_type") && err == nil {
			err = wrong
		}
	}
	return had, err
}
