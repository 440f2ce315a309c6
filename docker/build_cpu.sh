#!/bin/bash
# Builds the CPU image without a container engine, runs the quick tests and a training in two processes inside it, and
# records all of that: sudo docker/build_cpu.sh LOG.  Needs root, buildah and debootstrap (apt-get install them).
# From the environment: WORK (scratch folder, 10 GB), MIRROR (Debian's), TESTS (options of pytest instead of all quick
# tests), BUILD_ARGS (options of `buildah build`, such as -v /etc/pip.conf:/etc/pip.conf:ro where pip needs a mirror).
set -euo pipefail
log=$(realpath -m "${1:?"usage: $0 LOG"}")
root=$(cd "$(dirname "$0")/.." && pwd)
work=${WORK:-$(mktemp -d)}
mkdir -p "$work" "$(dirname "$log")"
# No image store, network set-up or overlay mounts beyond what a chroot offers.
buildah() { command buildah --root "$work/store" --runroot "$work/run" --storage-driver vfs "$@"; }
cleanup() {
  buildah rm --all >/dev/null 2>&1 || true
  buildah rmi --all --force >/dev/null 2>&1 || true
  umount -q "$work/debian/proc" "$work/debian/sys" || true  # left by a debootstrap that was interrupted
  rm -rf --one-file-system "$work/debian" "$work/store" "$work/run"
}
trap cleanup EXIT

{
  echo "== base: Debian bookworm by debootstrap"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$work/debian" \
    "${MIRROR:-http://deb.debian.org/debian}" | tail -n 1
  base=$(buildah from scratch)
  buildah add -q "$base" "$work/debian" / >/dev/null
  buildah commit -q "$base" pcdet-base >/dev/null
  buildah rm "$base" >/dev/null
  rm -rf "$work/debian"

  echo "== image: docker/cpu.Dockerfile"
  # shellcheck disable=SC2086  # several options
  buildah build --isolation chroot --format docker --build-arg BASE=localhost/pcdet-base ${BUILD_ARGS:-} \
    -f "$root/docker/cpu.Dockerfile" -t pcdet:cpu "$root"
  box=$(buildah from pcdet:cpu)
  inside() { buildah run --isolation chroot --hostname localhost --env OMP_NUM_THREADS=1 "$box" -- sh -euc "$1"; }

  echo "== user, Python, torch, health"
  inside 'id; python --version; python -c "import torch; print(torch.__version__)"; python docker/health.py; echo healthy'
  echo "== training in two processes"
  inside 'python tools/create_data.py simulate-modelnet --out data/shapes --per_class 5
    NPROC_PER_NODE=2 sh tools/scripts/cluster_train.sh --cfg_file cfgs/synthetic_models/pointnet_shapes.yaml \
      --device cpu --workers 0 --epochs 2 --set DATA_CONFIG.DATA_PATH data/shapes DATA_CONFIG.NUM_POINTS 64'
  echo "== quick tests"
  inside "python -m pytest ${TESTS:--m 'not slow' -n 2}"
} 2>&1 | tee "$log"
