#!/usr/bin/env bash
# Prints each Python from 3.11 on that this machine has, one path a line. PYTHONS="python3.12 /opt/python3.13"
# names others.
set -euo pipefail
if [ -n "${PYTHONS:-}" ]; then
    printf '%s\n' $PYTHONS
    exit
fi
for version in 3.11 3.12 3.13 3.14; do
    if command -v "python$version" > /dev/null && "python$version" -c '' 2> /dev/null; then
        command -v "python$version"
    else
        ls -d "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python 2> /dev/null | tail -1 || true
    fi
done
