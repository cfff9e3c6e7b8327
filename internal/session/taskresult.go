package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for clients that wait for a task of 2025-11-25. Their tasks/result is a
// call as others, so it survives what they do. What it says is copied from the stream of
// the task's call, with the task's id.

// A taskWait is a tasks/result that waits for its task.
type taskWait struct {
	legacyTasks
	waker
	c      *Call
	id     []byte // of the request
	number uint64 // of the task's stream
	seq    uint64 // of the last entry that was copied
}

// await has a tasks/result, which is the call's, answered when its task has ended.
func (l legacyTasks) await(c *Call, id []byte, number uint64) {
	w := &taskWait{legacyTasks: l, waker: waker{m: l.s.m}, c: c, id: slices.Clone(id), number: number}
	w.step = w.copy
	if t := l.at(number); t != nil {
		t.of.mu.Lock()
		t.waits = append(slices.DeleteFunc(t.waits, func(w *taskWait) bool { return w.c.isOver() }), w)
		t.of.mu.Unlock()
	}
	w.wake()
}

// copy says what the task has said meanwhile, and its end. It reports whether that is over.
func (w *taskWait) copy() (over bool) {
	s := w.s
	ctx, stop := context.WithTimeout(s.m.ctx, storeTimeout)
	defer stop()
	if w.c.isOver() {
		return true
	}
	_, st, err := w.state(ctx, w.number) // first: what was said before is stored
	if err == nil {
		err = w.copyNew(ctx)
	}
	switch {
	case errors.Is(err, ErrMoved) || s.isClosed():
		return true // it is answered where the session is
	case err != nil:
		w.c.answerOwn(w.id, taskFailure(w.id, err))
		return true
	case st.Running:
		return false
	}
	w.c.answerOwn(w.id, w.result(w.id, w.number, &st))
	return true
}

// copyNew says what the task has said beside its response: requests that still wait for the
// client, and what no other tasks/result has said.
func (w *taskWait) copyNew(ctx context.Context) error {
	s := w.s
	t := w.at(w.number)
	if t == nil {
		return ErrNotFound
	}
	said := s.CallAt(w.number)
	if said == nil {
		return nil
	}
	_, seq := said.AwaitsInput()
	err := s.eachEntry(ctx, w.number, seq, func(e *stream.Entry) {
		if e.Seq <= w.seq || len(e.Data) == 0 {
			return
		}
		w.seq = e.Seq
		method, id := jsonrpc.Field(e.Data, "method"), jsonrpc.Field(e.Data, "id")
		t.of.mu.Lock()
		news := e.Seq > t.copied
		t.copied = max(t.copied, e.Seq)
		t.of.mu.Unlock()
		if method == nil || id == nil && !news || id != nil && !s.Asks(id) {
			return
		}
		data, _ := jsonrpc.Set(slices.Clone(e.Data), w.related(w.number), "params", "_meta", protocol.MetaRelatedTask)
		w.c.emit(data, false)
	})
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return err
}

// related returns what the _meta of a message about a task has.
func (l legacyTasks) related(number uint64) []byte {
	return jsonrpc.Object("taskId", l.id(number))
}

// errTaskCancelled is the result of a task that was cancelled.
var errTaskCancelled = jsonrpc.Errorf(jsonrpc.CodeServer, "the task was cancelled")

// result returns the answer to a tasks/result: the response that ended the task.
func (l legacyTasks) result(id []byte, number uint64, st *Standing) []byte {
	if st.Response == nil {
		return jsonrpc.AppendError(nil, id, errTaskCancelled)
	}
	answer, _ := jsonrpc.Set(slices.Clone(st.Response), id, "id")
	if jsonrpc.Field(answer, "result") != nil {
		answer, _ = jsonrpc.Set(answer, l.related(number), "result", "_meta", protocol.MetaRelatedTask)
	}
	return answer
}

// notifyStatus tells a client that listens to its session of a task's status, if that is
// another one than was told. It reports whether there is no more to be told.
func (t *legacyTask) notifyStatus(number uint64, told *string) (over bool) {
	if !t.s.streams.IsRead(standalone) {
		return false
	}
	ctx, stop := context.WithTimeout(t.s.m.ctx, storeTimeout)
	defer stop()
	_, st, err := t.state(ctx, number)
	if err != nil {
		return true
	}
	is := t.text(number, t.created, &st)
	if is.Status != *told {
		*told = is.Status
		params, _ := json.Marshal(is)
		t.s.standalone.emit(jsonrpc.AppendRequest(nil, nil, protocol.MethodLegacyTaskStatus, params), false)
	}
	return !st.Running
}
