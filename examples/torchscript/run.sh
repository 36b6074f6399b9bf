#!/usr/bin/env bash
# Export a voice activity detector from its TorchScript file, check and serve it, stream audio
# through it and compare with the file.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
set -euo pipefail
cd "$(dirname "$0")/../.."

. examples/serving.sh

python -m examples.torchscript.make_bundle "$work/repository/vad"
hloserve check --run "$work/repository/vad"

serve "$work/repository"

python -m examples.torchscript.compare --grpc "$grpc"
