package install

import (
	"os"
	"testing"

	"holdfast/internal/testlong"
)

func TestMain(m *testing.M) {
	testlong.AtOnce(8) // each change of a file waits for the disk
	os.Exit(m.Run())
}
