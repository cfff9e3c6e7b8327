package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"holdfast/internal/testlong"

	"holdfast/jsonrpc"
)

// A schema that a server made long is taken apart in a time that grows with its length,
// and not with the square of that.
func TestLongSchemas(t *testing.T) {
	testlong.Only(t, "it takes seconds of computing")
	t.Parallel()
	const many = 100_000
	var properties, names strings.Builder
	for i := range many {
		comma := ","
		if i == 0 {
			comma = ""
		}
		fmt.Fprintf(&properties, `%s"p%07d":{"type":"string"}`, comma, i)
		fmt.Fprintf(&names, `%s"q%07d"`, comma, i)
	}
	schema := fmt.Sprintf(`{"properties":{%s},"required":[%s]}`, properties.String(), names.String())
	begun := time.Now()
	var one tool
	if err := json.Unmarshal([]byte(`{"inputSchema":`+schema+`}`), &one); err != nil {
		t.Fatal(err)
	}
	if text := signature(&one); !strings.HasPrefix(text, "[p0000000:string] [p0000001:string] ") {
		t.Errorf("%.100s", text)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A list of tools has an end, in bytes too.
func TestLongList(t *testing.T) {
	testlong.Only(t, "it takes seconds of computing")
	t.Parallel()
	page := fmt.Sprintf(`{"tools":[{"name":"t","description":%q,"inputSchema":{}}],"nextCursor":"NEXT"}`, strings.Repeat("A", 15<<20))
	pages := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id := jsonrpc.Field(body, "id")
		w.Header().Set("Content-Type", "application/json")
		switch jsonrpc.String(jsonrpc.Field(body, "method")) {
		case "initialize":
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`, id)
		case "tools/list":
			if pages++; pages > 10 {
				page = `{"tools":[]}` // it was too much long before
			}
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, strings.Replace(page, "NEXT", fmt.Sprint(pages), 1))
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	defer s.Close()
	f := newServerFlags()
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(io.Discard)
	err := listTools(cmd, &f, []string{s.URL}, false)
	if err == nil || !strings.Contains(err.Error(), "tools/list: it is longer than 32 MiB") {
		t.Errorf("%v", err)
	}
}
