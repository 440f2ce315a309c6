#!/bin/sh
# Train under slurm with one GPU a task, wherever they are free: slurm_train_v2.sh PARTITION JOB_NAME GPUS [options]
# From the environment: CPUS_PER_TASK (5), SRUN_ARGS.
set -eu
usage="usage: $0 PARTITION JOB_NAME GPUS [options of tools/train.py]"
partition=${1:?$usage} job=${2:?$usage} gpus=${3:?$usage}
shift 3
tools=$(dirname "$0")/..
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
exec srun -p "$partition" --job-name="$job" --gpus-per-task=1 --ntasks="$gpus" \
  --cpus-per-task="${CPUS_PER_TASK:-5}" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "${PYTHON:-python}" -u "$tools/train.py" --launcher slurm "$@"
