#!/bin/bash
#SBATCH --job-name=pcdet
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.out
#SBATCH --signal=USR1@120
# A job array, one training an entry: the lines of a file are options of tools/train.py. From the root of the checkout:
#   sbatch --array=0-2 --partition=gpu tools/scripts/slurm_array.sh runs.txt
# USR1 comes 120 s before the time limit; preemption sends TERM. Either way a training saves a checkpoint, the entry is
# queued again and goes on from there. From the environment: NPROC_PER_NODE (the GPUs of a node), PCDET_ROOT.
set -eu
runs=${1:?"usage: sbatch --array=0-N $0 RUNS.txt (options of tools/train.py, one training a line)"}
# sbatch copies this script elsewhere: the checkout is where the job was submitted.
root=${PCDET_ROOT:-${SLURM_SUBMIT_DIR:?is set by sbatch}}
line=$((${SLURM_ARRAY_TASK_ID:?start with sbatch --array} + 1))
options=$(sed -n "${line}p" "$runs")
[ -n "$options" ] || { echo "$runs has no line $line" >&2; exit 2; }

export NNODES=${SLURM_JOB_NUM_NODES:-1} NPROC_PER_NODE=${NPROC_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
export RUN_ID=${SLURM_JOB_ID:?is set by sbatch} MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
if [ "$NNODES" -gt 1 ]; then
  MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
  export MASTER_ADDR
fi

# TERM reaches this shell too: it has to outlive its step to read the status.
trap : TERM USR1
# shellcheck disable=SC2086  # a line holds several words
srun --kill-on-bad-exit=0 bash "$root/tools/scripts/cluster_train.sh" $options &
step=$! status=0
wait "$step" || status=$?
while kill -0 "$step" 2>/dev/null; do
  status=0
  wait "$step" || status=$?
done
if [ "$status" -eq 138 ]; then
  echo "Stopped by a signal: queued again"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
