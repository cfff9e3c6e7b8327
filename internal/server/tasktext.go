package server

import (
	"strconv"
	"time"

	"holdfast/jsonrpc"
)

// What follows writes tasks as JSON. A client that waits for a task asks for it again and
// again, and package json would take as long as all else that is done for that.

// json returns the task as JSON.
func (t *taskText) json() []byte {
	dst := append(make([]byte, 0, 300+len(t.Asked)+len(t.Result)+len(t.Error)), '{')
	if t.ResultType != "" {
		dst = append(append(append(dst, `"resultType":"`...), t.ResultType...), `",`...)
	}
	dst = append(append(append(dst, `"taskId":"`...), t.ID...), `","status":"`...)
	dst = append(append(dst, t.Status...), '"')
	if t.Message != "" {
		dst = append(append(dst, `,"statusMessage":`...), jsonrpc.Quote(t.Message)...)
	}
	dst = append(append(dst, `,"createdAt":"`...), t.Created...)
	dst = append(append(dst, `","lastUpdatedAt":"`...), t.Updated...)
	dst = strconv.AppendInt(append(dst, `","ttlMs":`...), t.TTL, 10)
	dst = strconv.AppendInt(append(dst, `,"pollIntervalMs":`...), t.Poll, 10)
	for _, member := range [...]struct {
		name  string
		value []byte
	}{{`,"inputRequests":`, t.Asked}, {`,"result":`, t.Result}, {`,"error":`, t.Error}} {
		if member.value != nil {
			dst = append(append(dst, member.name...), member.value...)
		}
	}
	return append(dst, '}')
}

// taskTime returns a time as ISO 8601 has it, in UTC and with milliseconds.
func taskTime(t time.Time) string {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	if year < 0 || year > 9999 {
		return t.Format("2006-01-02T15:04:05.000Z07:00")
	}
	text := [...]byte{'0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 'T', '0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', 'Z'}
	digits := func(n, last int) {
		for ; n > 0; n /= 10 {
			text[last] += byte(n % 10)
			last--
		}
	}
	digits(year, 3)
	digits(int(month), 6)
	digits(day, 9)
	digits(hour, 12)
	digits(minute, 15)
	digits(second, 18)
	digits(t.Nanosecond()/int(time.Millisecond), 22)
	return string(text[:])
}
