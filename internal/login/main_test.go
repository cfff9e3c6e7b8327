package login

import (
	"os"
	"testing"

	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(8) // they wait more than they work
	os.Exit(m.Run())
}
