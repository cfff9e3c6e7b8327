package main

import (
	"github.com/spf13/cobra"

	"holdfast/internal/statefile"
)

// addState adds the flag for the directory that keeps what must outlive a
// process of ours.
func addState(cmd *cobra.Command, dir *string, what string) {
	cmd.Flags().StringVar(dir, "state", statefile.Dir(), "`directory` that keeps "+what+"; empty: nothing is kept")
	_ = cmd.MarkFlagDirname("state") // fails for unknown flags only
}
