#!/usr/bin/env bash
# image.sh [TAG]: the broker as an image (default onceflow:VERSION and onceflow:latest).
# Needs an engine that answers; BASE names the image to build on (default python:3.12-slim).
set -euo pipefail
cd "$(dirname "$0")/.."
base=${BASE:-python:3.12-slim}
python=${PYTHON:-.venv/bin/python}
docker version >/dev/null 2>&1 || {
    echo "no container engine answers: start Docker or Podman's Docker service, or set DOCKER_HOST" >&2
    exit 1
}
version=$("$python" -c 'import onceflow; print(onceflow.__version__)')
tag=${1:-onceflow:$version}
docker image inspect "$base" >/dev/null 2>&1 || docker pull -q "$base"
found=$(docker run --rm "$base" python -c 'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())')
read -r release machine <<<"$found"
rm -rf docker/wheels
mkdir -p docker/wheels
# Plain Python: what is compiled here would fit neither the image's Python nor its C library.
ONCEFLOW_COMPILE=0 "$python" -m pip wheel -q --no-deps -w docker/wheels .
"$python" -m pip download -q --only-binary :all: --python-version "$release" --implementation cp \
    --platform "manylinux2014_$machine" --platform "manylinux_2_28_$machine" --platform any \
    -d docker/wheels "$(echo docker/wheels/onceflow-*.whl)[re2,security]"
docker build -q --build-arg "BASE=$base" -t "$tag" -t onceflow:latest docker
echo "$tag"
