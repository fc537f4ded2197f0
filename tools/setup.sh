#!/usr/bin/env bash
# Makes .venv and installs the project with everything that development needs. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "setup: Python 3.11 or newer is needed; give one with: make PYTHON=/path/to/python3 ..." >&2
  exit 1
fi

if [ ! -x .venv/bin/python ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "setup: installing python3-venv"
      apt-get update -q >/dev/null && apt-get install -y -q python3-venv >/dev/null
    else
      echo "setup: this Python lacks venv; on Debian or Ubuntu: sudo apt-get install python3-venv" >&2
      exit 1
    fi
  fi
  echo "setup: making .venv"
  "$python" -m venv --clear .venv
fi
echo "setup: installing onceflow with its development tools (a few minutes the first time)"
.venv/bin/python -m pip install -q --upgrade pip
.venv/bin/python -m pip install -q -e '.[dev]'
.venv/bin/onceflow --version
