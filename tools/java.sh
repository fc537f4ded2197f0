#!/usr/bin/env bash
# Checks for Java 17 or newer, which PySpark and Apache Kafka need. On Debian as root it installs a
# headless runtime; elsewhere it says in one line how.
set -euo pipefail
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

version() { "$java" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }

if command -v "$java" >/dev/null && [ "$(version)" -ge 17 ] 2>/dev/null; then
  exit 0
fi
if [ -n "${JAVA_HOME:-}" ]; then
  echo "java: JAVA_HOME=$JAVA_HOME holds no Java 17 or newer: unset it, or point it to one" >&2
  exit 1
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "java: installing a headless Java runtime"
  apt-get update -q >/dev/null
  apt-get install -y -q default-jre-headless >/dev/null
  java=java
  [ "$(version)" -ge 17 ] && exit 0
  apt-get install -y -q openjdk-17-jre-headless >/dev/null && exit 0
fi
echo "java: Java 17 or newer is needed (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless; macOS: brew install openjdk), or point JAVA_HOME to one" >&2
exit 1
