package holdfast_test

import (
	"os"
	"testing"

	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(32) // the tests wait more than they work
	os.Exit(m.Run())
}
