#!/usr/bin/env bash
# Installs the Debian 12 packages the project builds and runs with; those already there are left
# alone. As root, or else through sudo.
#
# Usage: deploy/install.sh [--ci]
#   --ci  also what the checks of .ci/run need: clang with its sanitizers, clang-format, clang-tidy
set -euo pipefail

packages=(
  ca-certificates ccache cmake g++ ninja-build pkg-config
  libabsl-dev libbenchmark-dev libgmock-dev libgrpc++-dev libgtest-dev libhwy-dev libicu-dev
  libpcre2-dev libprotobuf-dev libspdlog-dev libssl-dev nlohmann-json3-dev
  prometheus prometheus-cpp-dev protobuf-compiler protobuf-compiler-grpc
  python3 python3-venv spin
)
case "${1:-}" in
  "") ;;
  --ci) packages+=(clang clang-format-14 clang-tidy-14 libclang-rt-14-dev) ;;
  *)
    echo "usage: deploy/install.sh [--ci]" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  status="$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)"
  if [[ "$status" != installed ]]; then missing+=("$package"); fi
done
if ((${#missing[@]} == 0)); then
  echo "install: nothing is missing"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || {
    echo "install: missing ${missing[*]}; run this as root, or install sudo" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "install: installing ${missing[*]}"
"${as_root[@]}" apt-get update --quiet
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install --quiet --yes --no-install-recommends "${missing[@]}"
