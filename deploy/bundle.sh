#!/usr/bin/env bash
# Puts built programs and the shared libraries they need into one folder, and that into an archive,
# OUT_DIR.tar.xz. It runs on another Linux machine of the same processor family with the same or a
# newer C library.
#
#   deploy/bundle.sh BUILD_DIR OUT_DIR [PROGRAM...]
#
# PROGRAM: names in BUILD_DIR/bin; default: all of them. Afterwards OUT_DIR/run PROGRAM ARGS.. starts
# one. Not bundled: the C and C++ runtimes, and CUDA, cuBLASLt and NCCL, which the other machine must
# have (CUDA 13: /usr/local/cuda, or LD_LIBRARY_PATH). BUNDLE_MAX_MIB bounds the archive's size (64).
set -euo pipefail

if [[ $# -lt 2 ]]; then
  sed -n '2,11p' "$0" | cut -c3- >&2
  exit 2
fi
build_dir=$1
out_dir=$2
shift 2
max_mib=${BUNDLE_MAX_MIB:-64}
programs=("$@")
if [[ ${#programs[@]} -eq 0 ]]; then
  mapfile -t programs < <(find "$build_dir/bin" -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)
fi

left_out='^(ld-linux|linux-vdso|libc\.|libm\.|libdl\.|librt\.|libpthread\.|libgcc_s\.|libstdc\+\+)'
left_out+='|^(libcuda|libcudart|libcublas|libnccl|libnvJitLink|libnvrtc)'

rm -rf "$out_dir"
mkdir -p "$out_dir/bin" "$out_dir/lib"
for program in "${programs[@]}"; do
  strip -o "$out_dir/bin/$program" "$build_dir/bin/$program"
  chmod 755 "$out_dir/bin/$program"
  missing=$(ldd "$build_dir/bin/$program" | awk '/not found/ { print $1 }' | grep -Ev "$left_out" || true)
  if [[ -n $missing ]]; then
    echo "bundle.sh: $program needs libraries that are not here: $missing" >&2
    exit 1
  fi
  while read -r name path; do
    [[ $name =~ $left_out || -e $out_dir/lib/$name ]] && continue
    strip --strip-unneeded -o "$out_dir/lib/$name" "$path"
  done < <(ldd "$build_dir/bin/$program" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }')
done

cat > "$out_dir/run" <<'RUN'
#!/usr/bin/env bash
# run [--under "TOOL ARGS.."] PROGRAM ARGS..: starts a bundled program with the bundled libraries.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
under=()
if [[ $1 == --under ]]; then
  read -ra under <<< "$2"
  shift 2
fi
program=$1
shift
cuda=${CUDA_HOME:-/usr/local/cuda}
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}:$cuda/lib64:$cuda/lib"
exec "${under[@]}" "$here/bin/$program" "$@"
RUN
chmod 755 "$out_dir/run"

archive=${out_dir%/}.tar.xz
tar -C "$(dirname "$out_dir")" -cf - "$(basename "$out_dir")" | xz -1 > "$archive"
size_mib=$((($(stat -c %s "$archive") + (1 << 20) - 1) >> 20))
libraries=$(find "$out_dir/lib" -type f | wc -l)
echo "$out_dir: ${#programs[@]} programs, $libraries libraries; $archive: $size_mib MiB"
if ((size_mib > max_mib)); then
  echo "bundle.sh: larger than $max_mib MiB" >&2
  exit 1
fi
