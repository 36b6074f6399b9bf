#!/usr/bin/env bash
# Export, check, serve, ask and compare.
exec "$(dirname "$0")/../export_serve_compare.sh" pytorch_resnet
