package login

import (
	"os"
	"testing"

	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(8) // the tests wait more than they work
	os.Exit(m.Run())
}
