#!/bin/sh
# Evaluate under slurm on several GPUs: slurm_test_mgpu.sh PARTITION GPUS [options of tools/test.py]
# From the environment: GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS.
set -eu
usage="usage: $0 PARTITION GPUS [options of tools/test.py]"
partition=${1:?$usage} gpus=${2:?$usage}
shift 2
per_node=${GPUS_PER_NODE:-8}
[ "$per_node" -le "$gpus" ] || per_node=$gpus
tools=$(dirname "$0")/..
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
exec srun -p "$partition" --job-name=test --gres=gpu:"$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node" \
  --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "${PYTHON:-python}" -u "$tools/test.py" --launcher slurm "$@"
