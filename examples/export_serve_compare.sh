#!/usr/bin/env bash
# Export an example's model, check the bundle, serve it, ask three clients, compare with the source.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
# Usage: examples/export_serve_compare.sh [--no-checkpoint] [--repository] EXAMPLE [ARGUMENT...]
# EXAMPLE is the name of a directory beside this file; the ARGUMENTs are those of its make_bundle.
# With --no-checkpoint its weights come from elsewhere, and no file of them is written and compared.
# With --repository its make_bundle writes several bundles, and is given the directory for them.
set -euo pipefail
cd "$(dirname "$0")/.."

. examples/serving.sh

checkpoint=("$work/checkpoint")
if [ "$1" = --no-checkpoint ]; then
  checkpoint=()
  shift
fi
target=
if [ "$1" = --repository ]; then
  target=$work/repository
  shift
fi
example=$1
shift
target=${target:-$work/repository/$example}

python -m "examples.$example.make_bundle" "$target" "${checkpoint[@]}" "$@"

hloserve check --run "$target"

serve "$work/repository"

python -m "examples.$example.compare" "${checkpoint[@]}" --http "$http" --grpc "$grpc"
