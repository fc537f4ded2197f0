#!/usr/bin/env bash
# Clients, protocol and broker without a process, on every Python from 3.11 on that this machine has, each in an
# environment of its own. Nothing is compiled for them.
#   tools/interpreters.sh [pytest arguments]     PYTHONS="python3.12 /opt/python3.13" names others
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHONS=$(bash tools/pythons.sh)
[ -n "$PYTHONS" ] || { echo "no Python from 3.11 on was found; name some in PYTHONS"; exit 1; }
failed=""
for python in $PYTHONS; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    environment=.setup/python$version
    if ! cat pyproject.toml tools/interpreters.sh | cmp -s - "$environment/made-from"; then
        echo "python $version: setting up"
        "$python" -m venv --clear "$environment"
        ONCEFLOW_COMPILE=0 "$environment/bin/pip" install -q '.[opentelemetry,prometheus,schema-registry,security]' \
            aiokafka build confluent-kafka cryptography hypothesis kafka-python kio lz4 opentelemetry-sdk pyarrow \
            pydantic pytest pytest-asyncio pytest-randomly pytest-timeout pytest-xdist testcontainers types-protobuf
        "$environment/bin/pip" uninstall -q -y onceflow
        cat pyproject.toml tools/interpreters.sh > "$environment/made-from"
    fi
    echo "python $version:"
    PYTHONPATH=src "$environment/bin/python" -m pytest -q -p no:cacheprovider \
        -m "not kafka and not chaos and not spark and not slow and not foreign and not sim" \
        ${@:-tests/unit/sdk_core tests/unit/sdk_protocol tests/unit/broker} || failed="$failed $version"
done
[ -z "$failed" ] || { echo "failed on:$failed"; exit 1; }
