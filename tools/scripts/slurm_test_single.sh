#!/bin/sh
# Evaluate under slurm on one GPU: slurm_test_single.sh PARTITION [options of tools/test.py]
# From the environment: CPUS_PER_TASK (5), SRUN_ARGS.
set -eu
partition=${1:?"usage: $0 PARTITION [options of tools/test.py]"}
shift
tools=$(dirname "$0")/..
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
exec srun -p "$partition" --job-name=test --gres=gpu:1 --ntasks=1 --cpus-per-task="${CPUS_PER_TASK:-5}" \
  --kill-on-bad-exit=1 ${SRUN_ARGS:-} "${PYTHON:-python}" -u "$tools/test.py" "$@"
