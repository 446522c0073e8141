#!/usr/bin/env bash
# Builds and runs the C++ tests three times: plain, under ASan+UBSan, and under TSan. Argument: the folder of cmake and
# ninja (default: those on PATH). Ends non-zero on the first failure.
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
if [ $# -ge 1 ]; then PATH="$(cd "$1" && pwd):$PATH"; fi

# TSan's shadow memory does not fit every randomised address layout.
fixed_layout=()
if setarch -R true 2>/dev/null; then fixed_layout=(setarch -R); fi

floor() {
  local name="$1" sanitizers="$2" type="$3" began=$SECONDS
  local dir="$root/build/native-$name"
  shift 3
  cmake -S "$root/native" -B "$dir" -G Ninja -DTC_TESTS=ON -DTC_SANITIZE="$sanitizers" -DCMAKE_BUILD_TYPE="$type" >/dev/null
  cmake --build "$dir" -- -v >"$dir/build.log" 2>&1 || { cat "$dir/build.log"; return 1; }
  local built=$SECONDS
  "$@" "$dir/tc_tests"
  echo "native $name: built in $((built - began)) s, ran in $((SECONDS - built)) s"
}

export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0:${ASAN_OPTIONS:-}"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}"
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:${TSAN_OPTIONS:-}"
floor plain "" Release
floor asan "address,undefined" Debug
floor tsan "thread" Debug "${fixed_layout[@]}"
