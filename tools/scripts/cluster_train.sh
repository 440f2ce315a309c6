#!/bin/sh
# What every cluster job runs, once a machine: cluster_train.sh [options of tools/train.py]
# From the environment: NPROC_PER_NODE (1), NNODES (1), MAX_RESTARTS (3); with several machines also MASTER_ADDR,
# MASTER_PORT (29400), RUN_ID, JOIN_TIMEOUT (3600 s to wait for all machines), LOCAL_ADDR (this machine's address, where
# its name does not resolve), and this machine's number from 0 on: NODE_RANK, or what Slurm, an indexed Job or a
# PyTorchJob call it.
# SIGTERM or SIGUSR1 ends the training after its present step, with a checkpoint. Exit status: 0 when the run is over;
# 138 when a signal has stopped it, 142 when other machines have gone: start it again (Kubeflow does so from 128 on);
# else an error's.
set -eu
tools=$(cd "$(dirname "$0")/.." && pwd)
node=${NODE_RANK:-${SLURM_NODEID:-${JOB_COMPLETION_INDEX:-${RANK:-0}}}}
note=$(mktemp -d)
trap 'rm -rf "$note"' EXIT

# One machine needs no name that resolves.
rendezvous="--standalone --local_addr localhost"
if [ "${NNODES:-1}" -gt 1 ]; then
  # Otherwise torch 2.13's first launcher tells its store's address once, and a machine that comes later never hears it.
  export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  serves=false
  [ "$node" -ne 0 ] || serves=true
  rendezvous="--nnodes $NNODES --rdzv_backend c10d --rdzv_id ${RUN_ID:-pcdet}
    --rdzv_conf is_host=$serves,join_timeout=${JOIN_TIMEOUT:-3600}
    --rdzv_endpoint ${MASTER_ADDR:?names the machine of node 0}:${MASTER_PORT:-29400}
    ${LOCAL_ADDR:+--local_addr $LOCAL_ADDR}"
fi

# The launcher itself must outlive the signals: it would kill its workers before their checkpoint is written.
export TORCHELASTIC_SIGNALS_TO_HANDLE=SIGINT
unset RANK WORLD_SIZE
# shellcheck disable=SC2086  # several words
(
  trap '' TERM USR1
  exec "${PYTHON:-python}" -m torch.distributed.run $rendezvous --nproc_per_node "${NPROC_PER_NODE:-1}" \
    --max-restarts "${MAX_RESTARTS:-3}" "$tools/train.py" --launcher pytorch --status_file "$note/status" "$@"
) &
launcher=$!

# Repeated, since a worker that is still loading its modules ignores the signal.
# shellcheck disable=SC2317  # the trap calls it
stop_workers() {
  while kill -0 "$launcher" 2>/dev/null; do
    workers=$(cat "/proc/$launcher/task/$launcher/children" 2>/dev/null || pgrep -P "$launcher") || true
    # shellcheck disable=SC2086  # several numbers
    [ -z "$workers" ] || kill -USR1 $workers 2>/dev/null || true
    sleep 2
  done
}
trap 'trap "" TERM USR1; stop_workers &' TERM USR1

status=0
wait "$launcher" || status=$?
while kill -0 "$launcher" 2>/dev/null; do  # a signal has interrupted the waiting
  status=0
  wait "$launcher" || status=$?
done
case $(cat "$note/status" 2>/dev/null) in
  finished) exit 0 ;;
  stopped) exit 138 ;;
  lost) exit 142 ;;
esac
[ "$status" -ne 0 ] || status=1
exit "$status"
