#!/usr/bin/env bash
# Fills a folder with PoCL and what it needs for 64-bit Arm, from Debian's packages: what
# TVMFLOW_ARM64_SYSROOT names. Nothing is installed; needs apt-get, dpkg and the network.
#
#   tests/support/arm64_sysroot.sh FOLDER
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }

mkdir -p "$1"
folder=$(cd "$1" && pwd)
state=$folder/.apt
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
touch "$state/status"
# An apt of its own, which knows one architecture and nothing that is installed here.
cat >"$state/apt.conf" <<CONFIGURATION
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Dir::State "$state";
Dir::State::lists "$state/lists";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
CONFIGURATION
export APT_CONFIG=$state/apt.conf

apt-get update -q
apt-get install -q -y --download-only pocl-opencl-icd ocl-icd-libopencl1
for package in "$state"/cache/archives/*.deb; do
    dpkg -x "$package" "$folder"
done
rm -rf "$state"
echo "TVMFLOW_ARM64_SYSROOT=$folder"
