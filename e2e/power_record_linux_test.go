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

// A recording has the system calls of a process on the files of a directory, from strace. From
// it the tests make the disk as it may be after the machine has lost its power.

// recorder returns the command that starts a process under strace. It skips the test where
// strace is not allowed, and without -long.
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

// A step is a system call that has succeeded.
type step struct {
	begun, ended int // the lines of the recording where the call begins and ends
	at           float64
	call         string
	path         string // the file of the call
	to           string // the new name of a rename
	data         []byte
	offset       int64 // less than 0: at the end
	truncate     bool
	sync         bool // each write to the file is on the disk when it returns
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

// record reads the steps for files below dir from the output of strace.
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

// parseStep reads one system call. ok says that it has succeeded and changes or syncs a file.
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
	synced []byte // the content that is on the disk for sure
	later  []step // the steps on the file since synced
	always bool   // each write is synced to the disk
	full   bool   // it has replaced another file by a rename, before which file systems write its content
}

// now returns the content that a process reads from the file.
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

// A disk is the files of a directory: names are the names that a process sees, and synced those
// that are on the disk for sure.
type disk struct {
	names, synced map[string]*inode
}

// play repeats the steps up to the n-th line of the recording.
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

// sync is an fsync: steps that had ended when it began are on the disk.
func (d *disk) sync(s step, is *inode, before []step) {
	if is == nil || is.dir { // the recorded directory itself existed before, so it has no inode
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

// keep syncs a name to the disk, unless it has changed since an fsync began.
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

// lose writes to a directory the files that may be left after the power was lost: all that was
// synced, and any part of the rest.
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
			left[path] = is // the file was removed, but the removal is not on the disk
		}
	}
	for _, path := range slices.Sorted(maps.Keys(left)) {
		is, target := left[path], to+strings.TrimPrefix(path, from)
		if is.dir {
			mcptest.Check(t, os.MkdirAll(target, 0o700))
			continue
		}
		if _, err := os.Stat(filepath.Dir(target)); err != nil {
			continue // the file's directory is lost
		}
		mcptest.Check(t, os.WriteFile(target, is.left(r), 0o600))
	}
}

// left returns the content that may be left of a file.
func (i *inode) left(r *rand.Rand) []byte {
	if i.full {
		return i.now()
	}
	switch r.IntN(4) {
	case 0: // only the synced content
		return i.synced
	case 1: // all later steps
		return i.now()
	case 2: // the first later steps, and half of the next one
		if len(i.later) == 0 {
			return i.synced
		}
		n := r.IntN(len(i.later))
		torn := i.later[n]
		torn.data = torn.data[:len(torn.data)/2]
		return applied(applied(i.synced, i.later[:n]), []step{torn})
	}
	b := slices.Clone(i.synced) // any of the later steps; gaps between them are zero bytes
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
