package e2e

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A recording is what a process has done to the files of a directory, as strace saw it:
// from it a disk is made as it may be after the machine has lost its power.

// recorder is what starts a process so that it is recorded. The test is skipped where
// that is not allowed, and without -long.
func recorder(t *testing.T, file string) []string {
	t.Helper()
	_, err := exec.LookPath("strace")
	testlong.Needs(t, err == nil, "strace: install it, as .ci/run does")
	if out, err := exec.Command("strace", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace can't trace here: %v\n%s", err, out)
	}
	return []string{"strace", "-f", "-ttt", "-y", "-xx", "-s", "16777216", "--seccomp-bpf", "-o", file,
		"-e", "trace=openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,truncate,ftruncate"}
}

// A step is one system call that has succeeded.
type step struct {
	begun, ended int // which of all beginnings and ends of calls these were
	at           float64
	call         string
	path         string // what it was about
	to           string // its new name
	data         []byte
	offset       int64 // less than 0: at the end
	truncate     bool
	sync         bool // what is written is on the disk when it returns
}

var (
	straced  = regexp.MustCompile(`^(\d+) +([0-9.]+) (.*)$`)
	resumes  = regexp.MustCompile(`^<\.\.\. \w+ resumed>(.*)$`)
	escaped  = regexp.MustCompile(`(?:\\x[0-9a-f]{2})+`)
	returned = regexp.MustCompile(`\) += (-?\d+)`)
	fd       = regexp.MustCompile(`^(\w+)\((\d+)<([^>]*)>`)
	quoted   = regexp.MustCompile(`"([^"]*)"`)
	at       = regexp.MustCompile(`(AT_FDCWD|\d+)<([^>]*)>, "([^"]*)"`)
)

func unescape(s string) string {
	return escaped.ReplaceAllStringFunc(s, func(x string) string {
		b, _ := hex.DecodeString(strings.ReplaceAll(x, `\x`, ""))
		return string(b)
	})
}

// record reads what strace has written about the files below a directory.
func record(t *testing.T, file, dir string) []step {
	t.Helper()
	f := mcptest.Must(os.Open(file))(t)
	defer f.Close()
	type begun struct {
		n    int
		at   float64
		text string
	}
	open := map[string]begun{}
	var all []step
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 256<<20)
	for n := 0; lines.Scan(); n++ {
		m := straced.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		when, _ := strconv.ParseFloat(m[2], 64)
		b := begun{n, when, m[3]}
		if text, ok := strings.CutSuffix(m[3], "<unfinished ...>"); ok {
			b.text = strings.TrimSuffix(text, " ")
			open[m[1]] = b
			continue
		}
		if r := resumes.FindStringSubmatch(m[3]); r != nil {
			b = open[m[1]]
			b.text += r[1]
		}
		if s, ok := parseStep(b.text); ok && (strings.HasPrefix(s.path, dir+"/") || s.path == dir) {
			s.begun, s.ended, s.at = b.n, n, when
			all = append(all, s)
		}
	}
	mcptest.Check(t, lines.Err())
	return all
}

// parseStep reads one call, if it is one that matters.
func parseStep(text string) (s step, ok bool) {
	r := returned.FindAllStringSubmatch(text, -1)
	if r == nil || strings.HasPrefix(r[len(r)-1][1], "-") {
		return s, false
	}
	result, _ := strconv.Atoi(r[len(r)-1][1])
	s.call, _, _ = strings.Cut(text, "(")
	switch s.call {
	case "write", "pwrite64", "fsync", "fdatasync", "ftruncate":
		m := fd.FindStringSubmatch(text)
		if m == nil {
			return s, false
		}
		s.path, s.offset = unescape(m[3]), -1
		if q := quoted.FindStringSubmatch(text); q != nil {
			s.data = []byte(unescape(q[1]))[:result]
		}
		args := strings.Split(text[:strings.LastIndex(text, ")")], ", ")
		if s.call == "pwrite64" || s.call == "ftruncate" {
			s.offset, _ = strconv.ParseInt(args[len(args)-1], 10, 64)
		}
		return s, true
	}
	m := at.FindAllStringSubmatch(text, -1)
	if m == nil {
		return s, false
	}
	name := func(m []string) string {
		if p := unescape(m[3]); filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(unescape(m[2]), unescape(m[3]))
	}
	s.path = name(m[0])
	if len(m) > 1 {
		s.to = name(m[1])
	}
	if s.call == "openat" {
		s.truncate = strings.Contains(text, "O_TRUNC")
		s.sync = strings.Contains(text, "O_SYNC") || strings.Contains(text, "O_DSYNC")
		if !strings.Contains(text, "O_CREAT") && !s.truncate {
			return s, false
		}
	}
	return s, true
}

// An inode is a file, or a directory.
type inode struct {
	dir    bool
	synced []byte // what is on the disk for sure
	later  []step // what was done to it since
	always bool   // each write is brought to the disk
	full   bool   // it was given another's name, before which file systems write it
}

// now is what a process reads from it.
func (i *inode) now() []byte { return applied(i.synced, i.later) }

func applied(b []byte, steps []step) []byte {
	b = slices.Clone(b)
	for _, s := range steps {
		b = s.apply(b)
	}
	return b
}

func (s *step) apply(b []byte) []byte {
	if s.call == "ftruncate" {
		return append(b, make([]byte, max(0, int(s.offset)-len(b)))...)[:s.offset]
	}
	if s.truncate {
		return nil
	}
	from := int(s.offset)
	if from < 0 {
		from = len(b)
	}
	if grow := from + len(s.data) - len(b); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	copy(b[from:], s.data)
	return b
}

// A disk is the files of a directory: which names they have for those who look, and
// which names are on the disk for sure.
type disk struct {
	names, synced map[string]*inode
}

// play repeats what was recorded, up to the n-th line.
func play(steps []step, n int) *disk {
	d := &disk{names: map[string]*inode{}, synced: map[string]*inode{}}
	for k, s := range steps {
		if s.ended >= n {
			break
		}
		is := d.names[s.path]
		switch s.call {
		case "openat":
			if is == nil {
				is = &inode{}
				d.names[s.path] = is
			} else if s.truncate {
				is.later = append(is.later, s)
			}
			is.always = s.sync
		case "mkdirat", "mkdir":
			d.names[s.path] = &inode{dir: true}
		case "unlinkat", "unlink", "rmdir":
			delete(d.names, s.path)
		case "renameat", "renameat2", "rename":
			if is == nil {
				continue
			}
			is.full = is.full || d.names[s.to] != nil && !is.dir
			for path, below := range maps.Clone(d.names) {
				if rest, ok := strings.CutPrefix(path, s.path); ok && (rest == "" || rest[0] == '/') {
					delete(d.names, path)
					d.names[s.to+rest] = below
				}
			}
		case "write", "pwrite64", "ftruncate":
			if is != nil {
				is.later = append(is.later, s)
				if is.always {
					is.synced, is.later = is.now(), nil
				}
			}
		case "fsync", "fdatasync":
			d.sync(s, is, steps[:k])
		}
	}
	return d
}

// sync is an fsync: what had been done when it began is on the disk.
func (d *disk) sync(s step, is *inode, before []step) {
	if is == nil || is.dir { // the directory itself was there before
		for _, names := range []map[string]*inode{d.synced, d.names} {
			for path := range names {
				if filepath.Dir(path) == s.path {
					d.keep(path, s, before)
				}
			}
		}
		return
	}
	n := 0
	for n < len(is.later) && is.later[n].ended < s.begun {
		n++
	}
	is.synced, is.later = applied(is.synced, is.later[:n]), is.later[n:]
}

// keep brings a name to the disk, unless it has changed since an fsync began.
func (d *disk) keep(path string, sync step, before []step) {
	for i := len(before) - 1; i >= 0 && before[i].ended > sync.begun; i-- {
		if s := before[i]; s.path == path && s.call != "pwrite64" && s.call != "write" || s.to == path {
			return
		}
	}
	if is := d.names[path]; is != nil {
		d.synced[path] = is
	} else {
		delete(d.synced, path)
	}
}

// lose writes into a directory what may be left of a disk after the power was lost: all
// that was brought to it, and of what was not any part.
func (d *disk) lose(t *testing.T, from, to string, r *rand.Rand) {
	t.Helper()
	left := map[string]*inode{}
	for _, path := range slices.Sorted(maps.Keys(d.names)) {
		is := d.names[path]
		if d.synced[path] != is && (!is.dir || d.synced[path] != nil) && r.IntN(2) == 0 {
			is = d.synced[path]
		}
		if is != nil {
			left[path] = is
		}
	}
	for path, is := range d.synced {
		if d.names[path] == nil && r.IntN(2) == 0 {
			left[path] = is // it was removed, and that is not on the disk
		}
	}
	for _, path := range slices.Sorted(maps.Keys(left)) {
		is, target := left[path], to+strings.TrimPrefix(path, from)
		if is.dir {
			mcptest.Check(t, os.MkdirAll(target, 0o700))
			continue
		}
		if _, err := os.Stat(filepath.Dir(target)); err != nil {
			continue // its directory is lost
		}
		mcptest.Check(t, os.WriteFile(target, is.left(r), 0o600))
	}
}

// left is what is left of a file.
func (i *inode) left(r *rand.Rand) []byte {
	if i.full {
		return i.now()
	}
	switch r.IntN(4) {
	case 0: // nothing more
		return i.synced
	case 1: // all
		return i.now()
	case 2: // the first, and half of the next
		if len(i.later) == 0 {
			return i.synced
		}
		n := r.IntN(len(i.later))
		torn := i.later[n]
		torn.data = torn.data[:len(torn.data)/2]
		return applied(applied(i.synced, i.later[:n]), []step{torn})
	}
	b := slices.Clone(i.synced) // any, in any order: what is missing between is zero
	for _, s := range i.later {
		if r.IntN(2) == 0 {
			b = s.apply(b)
		}
	}
	return b
}

func (d *disk) String() string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(d.names)) {
		if is := d.names[path]; !is.dir {
			fmt.Fprintf(&b, "%s: %d bytes, %d on the disk, named there: %v\n", path, len(is.now()), len(is.synced), d.synced[path] == is)
		}
	}
	return b.String()
}
