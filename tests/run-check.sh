#!/usr/bin/env bash
# Style, types, floors and tidy, all at once; prints what failed and how long it took. $1: the venv's bin folder.
set -uo pipefail
BIN=$1
started=$(date +%s)
PY="bus native/tensorcast_native sdk services adapters tests docs/examples"
CPP=$(find native -name '*.cpp' -o -name '*.hpp')
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
declare -A jobs
start() { local name=$1; shift; "$@" >"$logs/$name" 2>&1 & jobs[$name]=$!; }
start ruff "$BIN/ruff" check -q $PY
start ruff-format "$BIN/ruff" format -q --check $PY
start clang-format "$BIN/clang-format" --dry-run --Werror $CPP
start mypy "$BIN/mypy"
start import-linter "$BIN/lint-imports" --cache-dir build/.import_linter_cache
start tidy "$BIN/pytest" -q -p no:cacheprovider tests/tidy
failed=0
for name in ruff ruff-format clang-format mypy import-linter tidy; do
  if wait "${jobs[$name]}"; then echo "  ok    $name"; else echo "  FAIL  $name"; sed 's/^/        /' "$logs/$name" | tail -40; failed=1; fi
done
echo "check: $(( $(date +%s) - started )) s"
exit $failed
