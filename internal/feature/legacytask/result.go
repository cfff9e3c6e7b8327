package legacytask

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"holdfast/internal/deferred"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// This file is for clients that wait for a task. Their tasks/result is a call like others, so it
// survives the same cuts. Its messages are copied from the stream of the task's call, with the
// task's id.

// A wait is a tasks/result that waits for its task.
type wait struct {
	waker
	task *task
	call *session.Call
	id   []byte // of the request
	seq  uint64 // of the last entry that was copied
}

// await makes the call of a tasks/result wait: it is answered when the task has ended.
func (t *task) await(c *session.Call, id []byte) {
	w := &wait{task: t, call: c, id: slices.Clone(id)}
	w.sessions, w.step = t.of.sessions, w.copy
	t.mu.Lock()
	t.waits = append(slices.DeleteFunc(t.waits, func(w *wait) bool { return w.call.IsOver() }), w)
	t.mu.Unlock()
	w.wake()
}

// copy copies the task's new messages to the tasks/result, and answers it when the task has ended.
// over says that there is no more to copy.
func (w *wait) copy(ctx context.Context) (over bool) {
	if w.call.IsOver() {
		return true
	}
	s := w.task.s
	_, st, err := find(ctx, s, w.task.number) // first: the messages before that are stored
	if err == nil {
		err = w.copyNew(ctx)
	}
	switch {
	case errors.Is(err, session.ErrMoved) || s.Moved() || s.Ended():
		return true // the node of the session answers it
	case err != nil:
		w.call.AnswerOwn(w.id, failure(w.id, err))
		return true
	case st.Running:
		return false
	}
	w.call.AnswerOwn(w.id, w.task.result(w.id, &st))
	return true
}

// copyNew copies the task's messages without its response: requests that still wait for the client,
// and messages that no other tasks/result has copied.
func (w *wait) copyNew(ctx context.Context) error {
	t := w.task
	said := t.s.CallAt(t.number)
	if said == nil {
		return nil
	}
	_, seq := said.AwaitsInput()
	err := t.s.Streams().Each(ctx, t.number, seq, func(e *stream.Entry) {
		if e.Seq <= w.seq || len(e.Data) == 0 {
			return
		}
		w.seq = e.Seq
		t.mu.Lock()
		news := e.Seq > t.copied
		t.copied = max(t.copied, e.Seq)
		t.mu.Unlock()
		method, id := jsonrpc.Field(e.Data, "method"), jsonrpc.Field(e.Data, "id")
		if method == nil || id == nil && !news || id != nil && !t.s.Asks(id) {
			return
		}
		data, _ := jsonrpc.Set(slices.Clone(e.Data), t.related(), "params", "_meta", protocol.MetaRelatedTask)
		w.call.Say(data)
	})
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return err
}

// related returns the value in the _meta of a message that names the task.
func (t *task) related() []byte { return jsonrpc.Object("taskId", t.id()) }

// errCancelled is the result of a task that was cancelled.
var errCancelled = jsonrpc.Errorf(jsonrpc.CodeServer, "the task was cancelled")

// result returns the answer to a tasks/result: the response that ended the task.
func (t *task) result(id []byte, st *deferred.Standing) []byte {
	if st.Response == nil {
		return jsonrpc.AppendError(nil, id, errCancelled)
	}
	answer, _ := jsonrpc.Set(slices.Clone(st.Response), id, "id")
	if jsonrpc.Field(answer, "result") != nil {
		answer, _ = jsonrpc.Set(answer, t.related(), "result", "_meta", protocol.MetaRelatedTask)
	}
	return answer
}

// notifyStatus tells a client that reads the standalone stream of the task's status, if the status
// has changed. over says that it will not change any more.
func (t *task) notifyStatus(ctx context.Context) (over bool) {
	if !t.s.Hears() {
		return false
	}
	_, st, err := find(ctx, t.s, t.number)
	switch {
	case errors.Is(err, session.ErrNotFound) || errors.Is(err, session.ErrMoved) || t.s.Moved() || t.s.Ended():
		return true
	case err != nil: // of the store, which may be away for a moment
		t.teller.wakeLater()
		return false
	}
	is := t.text(&st)
	if is.Status != t.status {
		t.status = is.Status
		params, _ := json.Marshal(is)
		t.s.Say(jsonrpc.AppendRequest(nil, nil, protocol.MethodLegacyTaskStatus, params))
	}
	return !st.Running
}
