package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"

	"holdfast/jsonrpc"
)

// The time to parse a long schema grows with its length, and not with the square of that.
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
	mcptest.Check(t, json.Unmarshal([]byte(`{"inputSchema":`+schema+`}`), &one))
	if text := signature(&one); !strings.HasPrefix(text, "[p0000000:string] [p0000001:string] ") {
		t.Errorf("%.100s", text)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A list of tools is bounded, in bytes too.
func TestLongList(t *testing.T) {
	testlong.Only(t, "it takes seconds of computing")
	t.Parallel()
	page := fmt.Sprintf(`{"tools":[{"name":"t","description":%q,"inputSchema":{}}],"nextCursor":"NEXT"}`, strings.Repeat("A", 15<<20))
	pages := 0
	url := mcptest.Serve(t, mcptest.Methods{"tools/list": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
		if pages++; pages > 10 {
			page = `{"tools":[]}` // the list was too long much earlier
		}
		mcptest.JSON(w, mcptest.Result(m, strings.Replace(page, "NEXT", fmt.Sprint(pages), 1)))
	}})
	f := newServerFlags()
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetOut(io.Discard)
	err := listTools(cmd, &f, []string{url}, false)
	if err == nil || !strings.Contains(err.Error(), "tools/list: it is longer than 32 MiB") {
		t.Errorf("%v", err)
	}
}
