#!/bin/sh
# Train in N processes of this machine: dist_train.sh N [options of tools/train.py]
exec "$(dirname "$0")/torch_train.sh" "$@"
