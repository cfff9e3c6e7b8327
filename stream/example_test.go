package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"

	"holdfast/engine"
	"holdfast/stream"
)

// The messages of a call are appended to its stream, and read from a cursor: from the
// beginning, or from a reader's last position.
func Example() {
	ctx := context.Background()
	store := engine.Memory(engine.Options{})
	defer store.Close()

	lease, err := store.Create(ctx, "session", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	call := stream.ID{Session: "session", Number: 1}
	err = store.Append(ctx, lease, []stream.Record{
		{Number: call.Number, Entry: stream.Entry{Seq: 1, Data: []byte("progress")}},
		{Number: call.Number, Entry: stream.Entry{Seq: 2, Data: []byte("response"), Last: true}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	cursor := stream.Cursor{Stream: call}
	for {
		entries, err := store.Read(ctx, cursor, make([]stream.Entry, 0, 1))
		if errors.Is(err, io.EOF) {
			fmt.Println("the call has ended")
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, e := range entries {
			fmt.Printf("%d: %s\n", e.Seq, e.Data)
			cursor.Epoch, cursor.Seq = e.Epoch, e.Seq
		}
	}
	// Output:
	// 1: progress
	// 2: response
	// the call has ended
}
