package holdfast_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

var (
	// link matches a link to another place in the repository, or an image of it.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// goFile matches the name of a file of ours in prose, with its folder or without.
	goFile = regexp.MustCompile("`([a-z0-9_./-]+\\.(?:go|md|txtar))`")
	// folder matches the name of a package of ours in prose.
	folder = regexp.MustCompile("`((?:internal|backend|cmd|engine|stream|client|bench|conformance|e2e|examples|docs)/[a-z0-9_/-]+)`")
	// section matches a table of the files of one folder.
	section = regexp.MustCompile("In `([a-z/]+)`:\n\n((?:\\|.*\n)+)")
	// goTest matches the name of a test in prose.
	goTest = regexp.MustCompile("`(Test[A-Z]\\w+)`")
	// heading matches a heading of a document, to which links lead.
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
)

// historic are documents that name files as they were, or will be.
var historic = map[string]bool{
	"docs/decisions/0022-exchanges.md": true, // the later fate of each file
	"CHANGELOG.md":                     true,
}

// The targets of documents' links exist, and so do the files, packages and tests that they name.
func TestDocuments(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	names := make(map[string]bool) // the names of all files, with and without their folders
	var documents []string
	var tests strings.Builder
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir():
			return nil
		}
		file = filepath.ToSlash(file)
		for name := file; ; { // the file's name below each of its folders
			names[name] = true
			_, rest, ok := strings.Cut(name, "/")
			if !ok {
				break
			}
			name = rest
		}
		if strings.HasSuffix(file, ".md") {
			documents = append(documents, file)
		}
		if strings.HasSuffix(file, "_test.go") {
			text, err := os.ReadFile(file)
			tests.Write(text)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(documents) < 20 {
		t.Fatalf("only %d documents are found", len(documents))
	}
	for _, document := range documents {
		data := mcptest.Must(os.ReadFile(document))(t)
		text := string(data)
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			checkLink(t, document, m[1])
		}
		if historic[document] {
			continue
		}
		for _, m := range goFile.FindAllStringSubmatch(text, -1) {
			if !names[m[1]] {
				t.Errorf("%s names the file %s, which is not there", document, m[1])
			}
		}
		for _, m := range section.FindAllStringSubmatch(text, -1) {
			for _, name := range goFile.FindAllStringSubmatch(m[2], -1) {
				if !names[m[1]+"/"+name[1]] {
					t.Errorf("%s says that %s is in %s, but it is not", document, name[1], m[1])
				}
			}
		}
		for _, m := range folder.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.FromSlash(m[1])); err != nil {
				t.Errorf("%s names %s, which is not there", document, m[1])
			}
		}
		for _, m := range goTest.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(tests.String(), "func "+m[1]+"(") {
				t.Errorf("%s names %s, which is no test", document, m[1])
			}
		}
	}
}

// checkLink checks that the target of a document's link exists: a file or folder, and a heading in it.
func checkLink(t *testing.T, document, target string) {
	t.Helper()
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return
	}
	file, anchor, _ := strings.Cut(target, "#")
	if file == "" {
		file = document
	} else {
		file = path.Join(path.Dir(document), file)
	}
	info, err := os.Stat(filepath.FromSlash(file))
	if err != nil {
		t.Errorf("%s links to %s, which is not there", document, target)
		return
	}
	if anchor == "" || info.IsDir() {
		return
	}
	data := mcptest.Must(os.ReadFile(filepath.FromSlash(file)))(t)
	for _, m := range heading.FindAllStringSubmatch(string(data), -1) {
		if anchorOf(m[1]) == anchor {
			return
		}
	}
	if !strings.Contains(string(data), `<a id="`+anchor+`"></a>`) {
		t.Errorf("%s links to %s, but there is no such heading", document, target)
	}
}

// anchorOf returns the anchor of a heading, as GitHub makes it.
func anchorOf(title string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r == ' ':
			b.WriteRune('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 0x7f:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// word matches a row of a glossary.
var word = regexp.MustCompile(`(?m)^\| ([a-z -]+) \| [^|]+ \|$`)

// The glossary for users is short, and each word is explained in one place.
func TestGlossary(t *testing.T) {
	t.Parallel()
	words := func(file string) (all []string) {
		data := mcptest.Must(os.ReadFile(file))(t)
		text := string(data)
		if _, glossary, ok := strings.Cut(text, "\n## Glossary\n"); ok {
			text, _, _ = strings.Cut(glossary, "\n## ")
		}
		for _, m := range word.FindAllStringSubmatch(text, -1) {
			if m[1] != "word" {
				all = append(all, m[1])
			}
		}
		if !slices.IsSorted(all) || len(all) < 10 {
			t.Errorf("%s: the words %q are not in order, or there are too few", file, all)
		}
		return all
	}
	users, code := words("docs/glossary.md"), words("ARCHITECTURE.md")
	if len(users) > 30 {
		t.Errorf("%d words are more than a user reads", len(users))
	}
	for _, w := range code {
		if slices.Contains(users, w) {
			t.Errorf("%q is explained twice", w)
		}
	}
}
