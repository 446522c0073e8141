#!/usr/bin/env bash
# Installs what the C++ build needs from Debian/Ubuntu when we may; elsewhere says what is missing and how to get it.
set -euo pipefail
missing=()
have_header() { echo "#include <$1>" | c++ -std=c++20 -E -x c++ - >/dev/null 2>&1; }
command -v c++ >/dev/null || missing+=(g++)
have_header xxhash.h || missing+=(libxxhash-dev)
have_header doctest/doctest.h || missing+=(doctest-dev)
"${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  echo "installing system packages: ${missing[*]}"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
else
  echo "missing system packages: ${missing[*]}" >&2
  echo "install them with your package manager, for example: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
