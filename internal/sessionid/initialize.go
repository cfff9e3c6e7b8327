package sessionid

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"io"
	"sync"
)

// mostPacked bounds the compressed params of an initialize in an id, in bytes: an id then has at most about 1,500
// characters, of the 8 KiB that proxies allow for all headers.
const mostPacked = 1024

// mostInitialize bounds the unpacked params, in bytes.
const mostInitialize = 128 << 10

// dictionary has text of most clients' params, the most frequent last. Ids that were sealed with another dictionary
// cannot be opened: it changes only with the version.
const dictionary = `{"protocolVersion":"2024-11-05","capabilities":{"experimental":{},"extensions":{"io.modelcontextprotocol/ui":{"mimeTypes":["text/html;profile=mcp-app"]}},` +
	`"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}},"tasks":{"cancel":{},"list":{},"requests":{"elicitation":{"create":{}},"sampling":{"createMessage":{}}}},"resumableRequests":{"eventIds":true},` +
	`"roots":{"listChanged":true}},"clientInfo":{"title":"","description":"","websiteUrl":"https://github.com/","icons":[{"src":"https://","mimeType":"image/png","sizes":["48x48"]}],` +
	`"name":"mcp-inspector","name":"claude-code","name":"cursor-vscode","name":"Visual Studio Code","name":"gemini-cli-mcp-client","name":"codex-mcp-client","name":"mcp","version":"1.0.0"}}` +
	`{"protocolVersion":"2025-03-26","protocolVersion":"2025-06-18","protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"`

var packers = sync.Pool{New: func() any {
	w, err := flate.NewWriterDict(io.Discard, flate.BestCompression, []byte(dictionary))
	if err != nil {
		panic(err) // the level is valid
	}
	return w
}}

// pack compresses a text.
func pack(text []byte) []byte {
	var packed bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&packed)
	_, _ = w.Write(text) // a write to a buffer never fails
	_ = w.Close()
	return packed.Bytes()
}

// unpack decompresses a packed text. It is false if that is not one or is too long.
func unpack(packed []byte) (text []byte, ok bool) {
	r := flate.NewReaderDict(bytes.NewReader(packed), []byte(dictionary))
	text, err := io.ReadAll(io.LimitReader(r, mostInitialize+1))
	return text, err == nil && len(text) <= mostInitialize
}

// Fit returns the params of an initialize as an id has them: whole if they are short when compressed, else shortened in
// these steps until they are:
//
//  1. without _meta, and clientInfo only with name and version;
//  2. without members that no revision has;
//  3. experimental capabilities and extensions by their names alone;
//  4. without these, and without capabilities that no revision has;
//  5. only the beginning of the client's name and version, and of the revision;
//  6. all capabilities by their names alone.
//
// It returns nil if they are no object, or are too long even so. With shortened params a server takes the client of a
// revived session for one with fewer capabilities.
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

// mostName bounds the name and the version of a client in step 5, in bytes.
const mostName = 100

// known are the capabilities of clients in the revisions, and Holdfast's own.
var known = []string{"roots", "sampling", "elicitation", "tasks", "resumableRequests"}

// object returns the members of a JSON object; nil if raw is no object.
func object(raw json.RawMessage) (members map[string]json.RawMessage) {
	_ = json.Unmarshal(raw, &members)
	return members
}

// put puts the object of into another, unless either is nil.
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
