#!/bin/sh
# Train under slurm: slurm_train.sh PARTITION JOB_NAME GPUS [options of tools/train.py]
# From the environment: GPUS_PER_NODE (8), CPUS_PER_TASK (5), SRUN_ARGS.
set -eu
usage="usage: $0 PARTITION JOB_NAME GPUS [options of tools/train.py]"
partition=${1:?$usage} job=${2:?$usage} gpus=${3:?$usage}
shift 3
per_node=${GPUS_PER_NODE:-8}
[ "$per_node" -le "$gpus" ] || per_node=$gpus
tools=$(dirname "$0")/..
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
exec srun -p "$partition" --job-name="$job" --gres=gpu:"$per_node" --ntasks="$gpus" --ntasks-per-node="$per_node" \
  --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "${PYTHON:-python}" -u "$tools/train.py" --launcher slurm "$@"
