package session

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// What follows is for clients that wait for a task of 2025-11-25. Their tasks/result is a
// call as others, so it survives what they do. What it says is copied from the stream of
// the task's call, with the task's id.

// A waker has something done, by one goroutine at a time, which there is only while there is
// something to do.
type waker struct {
	m    *Manager
	step func() (over bool)

	mu      sync.Mutex
	running bool
	again   bool
}

// wake has it done, once more if it is being done.
func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.again = w.running; w.again || !w.m.startWork() {
		return
	}
	w.running = true
	go w.run()
}

func (w *waker) run() {
	defer w.m.work.Done()
	for {
		over := w.step()
		w.mu.Lock()
		if over || !w.again {
			w.running = over // it is not woken any more
			w.mu.Unlock()
			return
		}
		w.again = false
		w.mu.Unlock()
	}
}

// A taskWait is a tasks/result that waits for its task.
type taskWait struct {
	waker
	c      *Call
	id     []byte // of the request
	number uint64 // of the task's stream
	seq    uint64 // of the last entry that was copied
}

// awaitTask has a tasks/result, which is the call's, answered when its task has ended.
func (s *Session) awaitTask(c *Call, id []byte, number uint64) {
	w := &taskWait{waker: waker{m: s.m}, c: c, id: slices.Clone(id), number: number}
	w.step = w.copy
	all := s.taskTable()
	all.mu.Lock()
	if t := all.all[number]; t != nil {
		t.waits = append(slices.DeleteFunc(t.waits, func(w *taskWait) bool { return w.c.isOver() }), w)
	}
	all.mu.Unlock()
	w.wake()
}

// copy says what the task has said meanwhile, and its end. It reports whether that is over.
func (w *taskWait) copy() (over bool) {
	s := w.c.s
	ctx, stop := context.WithTimeout(s.m.ctx, storeTimeout)
	defer stop()
	if w.c.isOver() {
		return true
	}
	_, st, err := s.legacyTaskState(ctx, w.number) // first: what was said before is stored
	if err == nil {
		err = w.copyNew(ctx)
	}
	switch {
	case errors.Is(err, ErrMoved) || s.isClosed():
		return true // it is answered where the session is
	case err != nil:
		s.answerOwn(w.c, w.id, taskFailure(w.id, err))
		return true
	case st.Running:
		return false
	}
	s.answerOwn(w.c, w.id, s.taskResult(w.id, w.number, &st))
	return true
}

// copyNew says what the task has said beside its response: requests that still wait for the
// client, and what no other tasks/result has said.
func (w *taskWait) copyNew(ctx context.Context) error {
	s := w.c.s
	t := s.taskAt(w.number)
	if t == nil {
		return ErrNotFound
	}
	said := s.streams.call(w.number)
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
		data, _ := jsonrpc.Set(slices.Clone(e.Data), s.relatedTask(w.number), "params", "_meta", protocol.MetaRelatedTask)
		w.c.emit(data, false)
	})
	if errors.Is(err, stream.ErrNotFound) { // nothing is stored yet
		err = nil
	}
	return err
}

// taskAt returns the record of a task, or nil.
func (s *Session) taskAt(number uint64) *task {
	all := s.taskTable()
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.all[number]
}

// relatedTask returns what the _meta of a message about a task has.
func (s *Session) relatedTask(number uint64) []byte {
	return jsonrpc.Object("taskId", s.legacyTaskID(number))
}

// errTaskCancelled is the result of a task that was cancelled.
var errTaskCancelled = jsonrpc.Errorf(jsonrpc.CodeServer, "the task was cancelled")

// taskResult returns the answer to a tasks/result: the response that ended the task.
func (s *Session) taskResult(id []byte, number uint64, st *TaskState) []byte {
	if st.Response == nil {
		return jsonrpc.AppendError(nil, id, errTaskCancelled)
	}
	answer, _ := jsonrpc.Set(slices.Clone(st.Response), id, "id")
	if jsonrpc.Field(answer, "result") != nil {
		answer, _ = jsonrpc.Set(answer, s.relatedTask(number), "result", "_meta", protocol.MetaRelatedTask)
	}
	return answer
}

// notifyTaskStatus tells a client that listens to its session of a task's status, if that is
// another one than was told. It reports whether there is no more to be told.
func (s *Session) notifyTaskStatus(number uint64, told *string) (over bool) {
	if !s.streams.read(standalone) {
		return false
	}
	ctx, stop := context.WithTimeout(s.m.ctx, storeTimeout)
	defer stop()
	created, st, err := s.legacyTaskState(ctx, number)
	if err != nil {
		return true
	}
	is := s.notifyLegacyTask(number, created, &st)
	if is.Status != *told {
		*told = is.Status
		params, _ := json.Marshal(is)
		s.standalone.emit(jsonrpc.AppendRequest(nil, nil, protocol.MethodLegacyTaskStatus, params), false)
	}
	return !st.Running
}
