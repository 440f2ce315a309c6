#!/bin/sh
# torchrun with N processes of this machine: torch_train.sh N [options of tools/train.py]
# --standalone lets the kernel choose a free port, so that several jobs can run at once; localhost always resolves.
set -eu
processes=${1:?"usage: $0 N [options of tools/train.py]"}
shift
tools=$(dirname "$0")/..
exec "${PYTHON:-python}" -m torch.distributed.run --standalone --local_addr localhost --nproc_per_node "$processes" \
  "$tools/train.py" --launcher pytorch "$@"
