#!/usr/bin/env bash
# Export, check, serve, ask and compare. With --sizes 1 2 --image-size 64 it is quick.
exec "$(dirname "$0")/../export_serve_compare.sh" pytorch_resnet "$@"
