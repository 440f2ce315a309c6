#!/bin/sh
# Evaluate in N processes of this machine: dist_test.sh N [options of tools/test.py]
exec "$(dirname "$0")/torch_test.sh" "$@"
