package terminal

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/testlong"
)

// The time to parse a schema is linear in its length.
func TestLongForms(t *testing.T) {
	testlong.Only(t, "it takes seconds of computing")
	t.Parallel()
	const many = 100_000
	var properties, names, values strings.Builder
	for i := range many {
		comma := ","
		if i == 0 {
			comma = ""
		}
		fmt.Fprintf(&properties, `%s"p%07d":{"type":"string"}`, comma, i)
		fmt.Fprintf(&names, `%s"q%07d"`, comma, i)
		fmt.Fprintf(&values, `%s"v%07d"`, comma, i)
	}
	schema := fmt.Sprintf(`{"properties":{%s},"required":[%s]}`, properties.String(), names.String())
	begun := time.Now()
	if n := len(fieldsOf([]byte(schema))); n != 2*many { // undescribed required fields are asked for, too
		t.Errorf("%d fields", n)
	}
	var f field
	if err := json.Unmarshal([]byte(fmt.Sprintf(`{"type":"array","items":{"enum":[%s]},"default":[%s]}`, values.String(), values.String())), &f); err != nil {
		t.Fatal(err)
	}
	if !f.takes(f.Default) {
		t.Error("the default does not fit")
	}
	if text := f.hint(); !strings.HasPrefix(text, "v0000000, v0000001, ") {
		t.Errorf("%.100s", text)
	}
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}
