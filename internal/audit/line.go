package audit

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"
	"unicode/utf8"
)

// message is that of all lines.
const message = "call"

// appendJSON appends a line as [slog.JSONHandler] writes it.
func appendJSON(dst []byte, at time.Time, attrs []slog.Attr) []byte {
	dst = append(dst, `{"time":"`...)
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","level":"INFO","msg":"`+message+`"`...)
	for i := range attrs {
		dst = append(dst, ',')
		dst = appendText(dst, attrs[i].Key)
		dst = append(dst, ':')
		dst = appendValue(dst, attrs[i].Value)
	}
	return append(dst, "}\n"...)
}

func appendValue(dst []byte, v slog.Value) []byte {
	switch v.Kind() {
	case slog.KindString:
		return appendText(dst, v.String())
	case slog.KindInt64:
		return strconv.AppendInt(dst, v.Int64(), 10)
	case slog.KindUint64:
		return strconv.AppendUint(dst, v.Uint64(), 10)
	case slog.KindFloat64:
		return strconv.AppendFloat(dst, v.Float64(), 'f', -1, 64)
	case slog.KindBool:
		return strconv.AppendBool(dst, v.Bool())
	}
	raw, _ := v.Any().(json.RawMessage)
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil { // it was valid
		return append(dst, "null"...)
	}
	return append(dst, line.Bytes()...)
}

// appendText appends a string.
func appendText(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= utf8.RuneSelf || c == '"' || c == '\\' {
			text, _ := json.Marshal(s) // a string always marshals
			return append(dst, text...)
		}
	}
	return append(append(append(dst, '"'), s...), '"')
}
