#!/usr/bin/env bash
# Compiles what costs something for each record beside its source, where a C compiler is at hand;
# without one the plain Python stays in use. Safe to run again: what is up to date is left alone.
set -euo pipefail
cd "$(dirname "$0")/.."
modules=$(sed -n 's/^    "\(sdk\/[a-z_/]*\)",$/\1/p' setup.py)
suffix=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')

made_of=sdk/compiled$suffix.sources # digests of what was compiled; the tests look at it too
# Together or not at all: a compiled module works with its like as it was compiled with them.
remove_compiled() { find sdk -name "*$suffix" -delete; rm -f "$made_of"; }

if [ -f "$made_of" ] && sha256sum --check --status "$made_of"; then
  exit 0
fi
remove_compiled
if ! command -v "${CC:-cc}" >/dev/null; then
  echo "compile: no C compiler; everything stays plain Python (slower, otherwise the same)"
  exit 0
fi
echo "compile: what each record goes through"
log=$(mktemp)
if ONCEFLOW_COMPILE=1 .venv/bin/python setup.py -q build_ext --inplace >"$log" 2>&1; then
  rm -f "$log"
  sha256sum setup.py $(printf '%s.py ' $modules) >"$made_of"
else
  tail -n 20 "$log" >&2
  rm -f "$log"
  remove_compiled
  echo "compile: it failed; everything stays plain Python (slower, otherwise the same)" >&2
fi
