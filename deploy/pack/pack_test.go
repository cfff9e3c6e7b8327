package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/macho"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// dist makes a directory with the archives of a release. The program of each platform is a text that names it.
func dist(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	var sums strings.Builder
	for _, p := range platforms {
		name := fmt.Sprintf("holdfast_%s_%s_%s", version, p.os, p.arch)
		var b bytes.Buffer
		program := "#!/bin/sh\n# " + p.os + " " + p.arch + "\n" + `echo "$$ $0 $@"; exit 7` + "\n"
		if p.os == "darwin" {
			program = macho64(p.arch) + program
		}
		if p.os == "windows" {
			name += ".zip"
			z := zip.NewWriter(&b)
			for file, text := range map[string]string{"holdfast.exe": program, "LICENSE": "A license\n"} {
				w, err := z.Create(file)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(w, text); err != nil {
					t.Fatal(err)
				}
			}
			if err := z.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			name += ".tar.gz"
			g := gzip.NewWriter(&b)
			w := tar.NewWriter(g)
			for file, text := range map[string]string{"holdfast": program, "LICENSE": "A license\n", "docs/install.md": "#"} {
				if err := w.WriteHeader(&tar.Header{Name: file, Mode: 0o755, Size: int64(len(text)), ModTime: time.Now()}); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(w, text); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := g.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b.Bytes()), name)
	}
	if err := os.WriteFile(filepath.Join(dir, "checksums.txt"), []byte(sums.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// macho64 returns the header of an empty program for macOS.
func macho64(arch string) string {
	head := binary.LittleEndian.AppendUint32(nil, macho.Magic64)
	cpu := macho.CpuAmd64
	if arch == "arm64" {
		cpu = macho.CpuArm64
	}
	for _, v := range []uint32{uint32(cpu), 0, uint32(macho.TypeExec), 0, 0, 0, 0} {
		head = binary.LittleEndian.AppendUint32(head, v)
	}
	return string(head)
}

// The bundle has a program for each system (that for macOS runs on both processors), and its manifest names them.
func TestMCPB(t *testing.T) {
	t.Parallel()
	data := packed(t, dist(t, "1.2.3"))["holdfast-1.2.3.mcpb"]
	z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[f.Name] = string(text)
		if executable := f.Mode()&0o111 != 0; executable != strings.HasPrefix(f.Name, "server/") {
			t.Errorf("%s has mode %v", f.Name, f.Mode())
		}
	}
	var m bundle
	if err := json.Unmarshal([]byte(files["manifest.json"]), &m); err != nil {
		t.Fatal(err)
	}
	if m.Name != "holdfast" || m.Version != "1.2.3" || !m.UserConfig["url"].Required || m.Server.Type != "binary" {
		t.Errorf("manifest %s", files["manifest.json"])
	}
	if files[m.Server.EntryPoint] == "" {
		t.Errorf("the entry point %q is not in the bundle", m.Server.EntryPoint)
	}
	for _, platform := range m.Compatibility["platforms"] {
		c := m.Server.Config.Platforms[platform]
		if !slices.Equal(c.Args, []string{"connect", "${user_config.url}"}) || files[strings.TrimPrefix(c.Command, "${__dirname}/")] == "" {
			t.Errorf("%s runs %q %q", platform, c.Command, c.Args)
		}
	}
	if len(m.Compatibility["platforms"]) != 3 || len(m.Server.Config.Platforms) != 3 {
		t.Errorf("platforms %q", m.Compatibility["platforms"])
	}
	mac, err := macho.NewFatFile(strings.NewReader(files["server/darwin/holdfast"]))
	if err != nil {
		t.Fatal(err)
	}
	if len(mac.Arches) != 2 || mac.Arches[0].Cpu != macho.CpuAmd64 || mac.Arches[1].Cpu != macho.CpuArm64 {
		t.Errorf("the program for macOS has %v", mac.Arches)
	}
	for i, arch := range []string{"amd64", "arm64"} {
		a := mac.Arches[i]
		if part := files["server/darwin/holdfast"][a.Offset : a.Offset+a.Size]; !strings.HasPrefix(part, macho64(arch)+"#!/bin/sh\n# darwin "+arch) || a.Offset%(1<<14) != 0 {
			t.Errorf("the part for %s begins at %d: %q", arch, a.Offset, part)
		}
	}
}

// packed packs a release, and returns the packages.
func packed(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	if err := run(io.Discard, []string{dir}); err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]byte)
	entries, err := os.ReadDir(filepath.Join(dir, "packages"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if all[e.Name()], err = os.ReadFile(filepath.Join(dir, "packages", e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// entry is a file in a package.
type entry struct {
	mode int64
	text string
}

// untar returns the files of an npm package. All have the same time.
func untar(t *testing.T, data []byte) map[string]entry {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]entry)
	for r := tar.NewReader(z); ; {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !head.ModTime.Equal(npmTime) || head.Uid != 0 || head.Uname != "" {
			t.Errorf("%s: %v, %d %q", head.Name, head.ModTime, head.Uid, head.Uname)
		}
		all[head.Name] = entry{head.Mode, string(text)}
	}
}

func TestNpm(t *testing.T) {
	t.Parallel()
	all := packed(t, dist(t, "1.2.3-rc.1"))
	top := untar(t, all["holdfast-1.2.3-rc.1.tgz"])
	if names := slices.Sorted(maps.Keys(top)); !slices.Equal(names, []string{"package/LICENSE", "package/README.md", "package/bin/holdfast.js", "package/package.json"}) {
		t.Errorf("files %q", names)
	}
	var m map[string]any
	if err := json.Unmarshal([]byte(top["package/package.json"].text), &m); err != nil {
		t.Fatal(err)
	}
	if m["scripts"] != nil || m["version"] != "1.2.3-rc.1" || m["bin"].(map[string]any)["holdfast"] != "bin/holdfast.js" || top["package/bin/holdfast.js"].mode != 0o755 {
		t.Errorf("package.json is %v", m)
	}
	optional, _ := m["optionalDependencies"].(map[string]any)
	for _, p := range platforms {
		name := p.npmName()
		if optional[name] != "1.2.3-rc.1" {
			t.Errorf("%s is %v", name, optional[name])
		}
		files := untar(t, all[name+"-1.2.3-rc.1.tgz"])
		program := files["package/bin/"+p.program()]
		if program.mode != 0o755 || !strings.Contains(program.text, "# "+p.os+" "+p.arch+"\n") || len(files) != 3 {
			t.Errorf("%s has %v", name, files)
		}
		var of manifest
		if err := json.Unmarshal([]byte(files["package/package.json"].text), &of); err != nil || of.Name != name || of.Version != "1.2.3-rc.1" || of.OS[0] != p.nodeOS || of.CPU[0] != p.nodeArch || of.Bin != nil {
			t.Errorf("%s: %+v, %v", name, of, err)
		}
	}
}

func TestWheels(t *testing.T) {
	t.Parallel()
	all := packed(t, dist(t, "1.2.3"))
	for _, p := range platforms {
		name := "holdfast-1.2.3-py3-none-" + p.tags + ".whl"
		data := all[name]
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		files := make(map[string][]byte)
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			if files[f.Name], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
			if isProgram := strings.Contains(f.Name, "/scripts/"); isProgram != (f.Mode().Perm() == 0o755) || f.Modified.Year() != 1980 {
				t.Errorf("%s: %v %v", f.Name, f.Mode(), f.Modified)
			}
		}
		if program := files["holdfast-1.2.3.data/scripts/"+p.program()]; !bytes.Contains(program, []byte("# "+p.os+" "+p.arch+"\n")) {
			t.Errorf("%s has the program %q", name, program)
		}
		if kind := string(files["holdfast-1.2.3.dist-info/WHEEL"]); strings.Count(kind, "Tag: py3-none-") != strings.Count(p.tags, ".")+1 || !strings.Contains(kind, "Root-Is-Purelib: false\n") {
			t.Errorf("%s: WHEEL is %s", name, kind)
		}
		if about := string(files["holdfast-1.2.3.dist-info/METADATA"]); !strings.Contains(about, "\nName: holdfast\nVersion: 1.2.3\n") {
			t.Errorf("%s: METADATA is %s", name, about)
		}
		record, err := csv.NewReader(bytes.NewReader(files["holdfast-1.2.3.dist-info/RECORD"])).ReadAll()
		if err != nil || len(record) != len(files) {
			t.Fatalf("%s: RECORD is %q, %v", name, record, err)
		}
		for _, line := range record {
			sum := sha256.Sum256(files[line[0]])
			if want := "sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]); !strings.HasSuffix(line[0], "/RECORD") && (line[1] != want || line[2] != fmt.Sprint(len(files[line[0]]))) {
				t.Errorf("%s: %q, want %s", name, line, want)
			}
		}
	}
}

// The same programs give the same packages, at whatever time their archives were made.
func TestReproducible(t *testing.T) {
	t.Parallel()
	a, b := packed(t, dist(t, "0.1.0")), packed(t, dist(t, "0.1.0"))
	if len(a) != 2*len(platforms)+2 { // two per platform, npm's package with the name, and the bundle
		t.Errorf("packages %q", slices.Sorted(maps.Keys(a)))
	}
	for name, data := range a {
		if !bytes.Equal(data, b[name]) {
			t.Errorf("%s differs", name)
		}
	}
}

func TestPythonVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3rc1", "1.2.3-beta2": "1.2.3b2", "1.2.3-alpha.10": "1.2.3a10", "0.0.1-1d1b635": "0.0.1.dev0+1d1b635", "0.1.0-next-5.aB": "0.1.0.dev0+next.5.ab",
	} {
		if got := pythonVersion(version); got != want {
			t.Errorf("%s is %s, want %s", version, got, want)
		}
	}
}

// A wrong release is an error that says what is wrong, and no package is made.
func TestWrongRelease(t *testing.T) {
	t.Parallel()
	linux := "holdfast_1.2.3_linux_amd64.tar.gz"
	for what, spoil := range map[string]func(dir string) error{
		"goreleaser release": func(dir string) error {
			return os.RemoveAll(filepath.Join(dir, "checksums.txt"))
		},
		"is not the file that checksums.txt names": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, linux), []byte("other"), 0o600)
		},
		"linux/amd64": func(dir string) error { return os.Remove(filepath.Join(dir, linux)) },
		"versions 1.2.3 and 1.3.0": func(dir string) error {
			return os.Rename(filepath.Join(dir, linux), filepath.Join(dir, "holdfast_1.3.0_linux_amd64.tar.gz"))
		},
		"no platform linux/riscv64": func(dir string) error {
			return os.Rename(filepath.Join(dir, linux), filepath.Join(dir, "holdfast_1.2.3_linux_riscv64.tar.gz"))
		},
		"no version": func(dir string) error {
			return os.Rename(filepath.Join(dir, linux), filepath.Join(dir, "holdfast_1.2_linux_amd64.tar.gz"))
		},
	} {
		dir := dist(t, "1.2.3")
		if err := spoil(dir); err != nil {
			t.Fatal(err)
		}
		if err := run(io.Discard, []string{dir}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %s", err, what)
		}
		if _, err := os.Stat(filepath.Join(dir, "packages")); err == nil {
			t.Errorf("%s: packages were made", what)
		}
	}
	if err := run(io.Discard, nil); err == nil || !strings.Contains(err.Error(), "want the directory") {
		t.Errorf("no directory: %v", err)
	}
}

// installed puts npm packages into the directories that npm uses, and returns the shim.
func installed(t *testing.T, all map[string][]byte, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		for file, e := range untar(t, all[name+"-1.2.3.tgz"]) {
			to := filepath.Join(dir, "node_modules", name, strings.TrimPrefix(file, "package/"))
			if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, []byte(e.text), os.FileMode(e.mode)); err != nil { //nolint:gosec // modes of a package
				t.Fatal(err)
			}
		}
	}
	return filepath.Join(dir, "node_modules", "holdfast", "bin", "holdfast.js")
}

// The shim passes on arguments and the exit code, or says which package or program is missing.
func TestShim(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("node"); err != nil || runtime.GOOS == "windows" {
		t.Skip("this machine has no node, or no /bin/sh")
	}
	all := packed(t, dist(t, "1.2.3"))
	i := slices.IndexFunc(platforms, func(p platform) bool { return p.os == runtime.GOOS && p.arch == runtime.GOARCH })
	if i < 0 {
		t.Skip("there is no package for this platform")
	}
	here := platforms[i].npmName()
	node := func(shim string, args ...string) (string, int) {
		cmd := exec.Command("node", append(args, shim, "a b", "--", "*")...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	whole := installed(t, all, "holdfast", here)
	for _, without := range []string{"", "process.execve = undefined"} {
		before := filepath.Join(t.TempDir(), "before.cjs")
		if err := os.WriteFile(before, []byte(without), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := node(whole, "-r", before); code != 7 || !strings.HasSuffix(out, " a b -- *\n") || strings.Count(out, "\n") != 1 {
			t.Errorf("%s: %d, %q", without, code, out)
		}
	}
	if out, code := node(installed(t, all, "holdfast")); code != 1 || !strings.Contains(out, "the package "+here+",") || !strings.Contains(out, "--omit=optional") || strings.Count(out, "\n") != 1 {
		t.Errorf("without the platform's package: %d, %q", code, out)
	}
	other := filepath.Join(t.TempDir(), "other.cjs")
	if err := os.WriteFile(other, []byte("Object.defineProperty(process, 'arch', {value: 'mips'})"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := node(whole, "-r", other); code != 1 || !strings.Contains(out, "no program for "+platforms[i].nodeOS+" mips") || !strings.Contains(out, "darwin arm64") || strings.Count(out, "\n") != 1 {
		t.Errorf("another platform: %d, %q", code, out)
	}
	// Some tools unpack files without their modes.
	if err := os.Chmod(filepath.Join(filepath.Dir(whole), "..", "..", here, "bin", "holdfast"), 0o644); err != nil { //nolint:gosec // what is tested
		t.Fatal(err)
	}
	if out, code := node(whole); code != 7 {
		t.Errorf("without modes: %d, %q", code, out)
	}
}
