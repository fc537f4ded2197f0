#!/usr/bin/env bash
# Compiles the record kernel beside its source, where a C compiler is at hand; without one the
# plain Python stays in use. Safe to run again: what is up to date is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
kernel=sdk/protocol/record_kernel
suffix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

if [ "$kernel$suffix" -nt "$kernel.py" ]; then
  exit 0
fi
rm -f "$kernel"*"$suffix"
if ! command -v "${CC:-cc}" >/dev/null; then
  echo "compile: no C compiler; the record kernel stays plain Python (slower, otherwise the same)"
  exit 0
fi
echo "compile: the record kernel"
log=$(mktemp)
if ONCEFLOW_COMPILE=1 .venv/bin/python setup.py -q build_ext --inplace >"$log" 2>&1; then
  rm -f "$log"
  touch "$kernel$suffix"
else
  tail -n 20 "$log" >&2
  rm -f "$log" "$kernel"*"$suffix"
  echo "compile: it failed; the record kernel stays plain Python (slower, otherwise the same)" >&2
fi
