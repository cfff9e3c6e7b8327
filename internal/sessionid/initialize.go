package sessionid

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
	"sync"
)

// mostPacked bounds what the params of an initialize take in an id, in bytes: with the rest an id has about 1,500
// characters then, of the 8 KiB that proxies let all headers have.
const mostPacked = 1024

// mostInitialize bounds what is unpacked.
const mostInitialize = 128 << 10

// dictionary has what most clients say, the most frequent last. Ids that were sealed with another cannot be opened: it
// changes only with the version.
const dictionary = `{"protocolVersion":"2024-11-05","capabilities":{"experimental":{},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},` +
	`"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}},"resumableRequests":{"eventIds":true},` +
	`"roots":{"listChanged":true}},"clientInfo":{"title":"","description":"","websiteUrl":"https://github.com/","icons":[{"src":"https://","mimeType":"image/png","sizes":["48x48"]}],` +
	`"name":"mcp-inspector","name":"claude-code","name":"cursor-vscode","name":"Visual Studio Code","name":"gemini-cli-mcp-client","name":"codex-mcp-client","name":"mcp","version":"1.0.0"}}` +
	`{"protocolVersion":"2025-03-26","protocolVersion":"2025-06-18","protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriterDict(io.Discard, flate.BestCompression, []byte(dictionary))
	if err != nil {
		panic(err) // there is such a level
	}
	return w
}}

// pack compresses a text.
func pack(text []byte) []byte {
	var packed bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&packed)
	_, _ = w.Write(text) // a buffer takes all
	_ = w.Close()
	return packed.Bytes()
}

// unpack does the reverse.
func unpack(packed []byte) (text []byte, ok bool) {
	r := flate.NewReaderDict(bytes.NewReader(packed), []byte(dictionary))
	text, err := io.ReadAll(io.LimitReader(r, mostInitialize+1))
	return text, err == nil && len(text) <= mostInitialize
}

// Fit returns the params of an initialize as an id has them: whole if they are short when compressed, else without what is
// left out for that, in this order, until they are:
//
//  1. _meta, and what the client says of itself beside its name and version;
//  2. members that no revision has;
//  3. what is in experimental capabilities and in extensions, and then those;
//  4. capabilities that no revision has;
//  5. all but the beginning of the client's name and version.
//
// A server that is shown the rest takes a revived session for one of a client that can do less.
func Fit(params []byte) []byte {
	if len(params) <= mostPacked/2 || len(params) <= mostInitialize && len(pack(params)) <= mostPacked {
		return params
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(params, &all) != nil {
		return nil
	}
	info, capabilities := object(all["clientInfo"]), object(all["capabilities"])
	for _, shorten := range []func(){
		func() {
			delete(all, "_meta")
			keepOnly(info, "name", "version")
		},
		func() { keepOnly(all, "protocolVersion", "capabilities", "clientInfo") },
		func() {
			for _, group := range []string{"experimental", "extensions"} {
				names := object(capabilities[group])
				for name := range names {
					names[name] = json.RawMessage(`{}`)
				}
				put(capabilities, group, names)
			}
		},
		func() { keepOnly(capabilities, known...) },
		func() {
			for _, name := range []string{"name", "version"} {
				var text string
				if json.Unmarshal(info[name], &text) == nil && len(text) > mostName {
					info[name], _ = json.Marshal(text[:mostName])
				}
			}
			var text string
			if json.Unmarshal(all["protocolVersion"], &text) == nil && len(text) > mostName {
				all["protocolVersion"], _ = json.Marshal(text[:mostName])
			}
		},
		func() { // each capability by its name alone
			for name := range capabilities {
				capabilities[name] = json.RawMessage(`{}`)
			}
		},
	} {
		shorten()
		put(all, "clientInfo", info)
		put(all, "capabilities", capabilities)
		short, err := json.Marshal(all)
		if err == nil && len(short) <= mostInitialize && len(pack(short)) <= mostPacked {
			return short
		}
	}
	return nil
}

// mostName bounds, in bytes, the name and the version of a client that says very much.
const mostName = 100

// known are the capabilities of clients that revisions have, and Holdfast's.
var known = []string{"roots", "sampling", "elicitation", "tasks", "resumableRequests"}

// object returns the members of a JSON object; nil if it is none.
func object(raw json.RawMessage) (members map[string]json.RawMessage) {
	_ = json.Unmarshal(raw, &members)
	return members
}

// put puts an object into another, if it is one.
func put(into map[string]json.RawMessage, name string, of map[string]json.RawMessage) {
	if into == nil || of == nil {
		return
	}
	if raw, err := json.Marshal(of); err == nil {
		into[name] = raw
	}
}

// keepOnly deletes all other members.
func keepOnly(of map[string]json.RawMessage, names ...string) {
	keep := make(map[string]json.RawMessage, len(names))
	for _, name := range names {
		if value, ok := of[name]; ok {
			keep[name] = value
		}
	}
	for name := range of {
		if _, ok := keep[name]; !ok {
			delete(of, name)
		}
	}
}
