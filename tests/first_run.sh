#!/usr/bin/env bash
# What a newcomer does in a new clone: `make run` installs, serves, and shows a real answer; a taken port is said
# clearly. Run by .ci/run, in the root of the clone.
set -euo pipefail
logs=$(mktemp -d)
running=
cleanup() {
  [ -z "$running" ] || { kill "$running" && wait "$running"; } || true
  rm -rf "$logs"
}
trap cleanup EXIT

# Nothing of the caller's environment but where programs are, and how pip reaches its index.
mapfile -t kept < <(env | grep -E '^(PATH|HOME|PIP_[A-Z_]*)=')
fail() { echo "FAILED: $1"; cat "$logs/run"; exit 1; }

# expect SECONDS TEXT: wait until the log holds it.
expect() {
  for _ in $(seq "$1"); do
    grep -qF "$2" "$logs/run" && return
    kill -0 "$running" 2>/dev/null || fail "make ended without: $2"
    sleep 1
  done
  fail "not within $1 s: $2"
}

env -i "${kept[@]}" make run >"$logs/run" 2>&1 &
running=$!
expect 600 "Ready on http://127.0.0.1:8000, serving embeddings"
expect 60 "Ctrl-C stops everything"
grep -A 20 "Ready on" "$logs/run"
answer=$(bash -c "$(grep -m 1 "^ *curl http" "$logs/run") -s")
python3 -c 'import json, sys; answer = json.loads(sys.argv[1]); assert len(answer) == 384, answer' "$answer"
echo "ok: serves, and its curl line answers with 384 numbers"

if env -i "${kept[@]}" make run >"$logs/taken" 2>&1; then fail "a second service on the same port started"; fi
grep -F "Something listens on 127.0.0.1 port 8000 already. Choose another: make run PORT=8001" \
  "$logs/taken" || { cat "$logs/taken"; fail "no clear word about the taken port"; }

kill "$running"  # make hands it on
wait "$running" || true
running=
grep -F "stopping broker" "$logs/run"
