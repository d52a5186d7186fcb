#!/usr/bin/env bash
# A new clone in a folder whose path has 150 characters and a space, with no environment: `make run` serves and shows
# a real answer, `make test` works, and a taken port is said clearly. Run by .ci/run; takes some minutes.
set -euo pipefail
source=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d /tmp/fresh-XXXXXX)
running=
cleanup() {
  [ -z "$running" ] || { kill "$running" && wait "$running"; } || true
  rm -rf "$root"
}
trap cleanup EXIT

clone="$root/a folder "
clone+=$(printf 'x%.0s' $(seq $((150 - ${#clone}))))
git clone --quiet "$source" "$clone"
cd "$clone"
echo "fresh clone in a path of $(pwd | tr -d '\n' | wc -c) characters"

# Nothing of the caller's environment but where programs are, and how pip reaches its index.
mapfile -t kept < <(env | grep -E '^(PATH|HOME|PIP_[A-Z_]*)=')
fail() { echo "FAILED: $1"; cat "$root/log"; exit 1; }

# expect SECONDS TEXT: wait until the log holds it.
expect() {
  for _ in $(seq "$1"); do
    grep -qF "$2" "$root/log" && return
    kill -0 "$running" 2>/dev/null || fail "make ended without: $2"
    sleep 1
  done
  fail "not within $1 s: $2"
}

env -i "${kept[@]}" make run >"$root/log" 2>&1 &
running=$!
expect 600 "Ready on http://127.0.0.1:8000, serving embeddings"
expect 60 "Ctrl-C stops everything"
grep -A 20 "Ready on" "$root/log"
answer=$(bash -c "$(grep -m 1 "^ *curl http" "$root/log") -s")
python3 -c 'import json, sys; answer = json.loads(sys.argv[1]); assert len(answer) == 384, answer' "$answer"
echo "ok: serves, and its curl line answers with 384 numbers"

if env -i "${kept[@]}" make run >"$root/log.taken" 2>&1; then fail "a second service on the same port started"; fi
grep -F "Something listens on 127.0.0.1 port 8000 already. Choose another: make run PORT=8001" \
  "$root/log.taken" || { cat "$root/log.taken"; fail "no clear word about the taken port"; }

kill "$running"  # make hands it on
wait "$running" || true
running=
grep -F "stopping broker" "$root/log"
env -i "${kept[@]}" make test T="tests.inference.test_contracts tests.e2e.test_clear_errors"
echo "ok: fresh clone"
