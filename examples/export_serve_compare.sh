#!/usr/bin/env bash
# Export an example's model, check the bundle, serve it, ask three clients, compare with the source.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
# Usage: examples/export_serve_compare.sh [--no-checkpoint] [--repository] EXAMPLE [ARGUMENT...]
# EXAMPLE is the name of a directory beside this file; the ARGUMENTs are those of its make_bundle.
# With --no-checkpoint its weights come from elsewhere, and no file of them is written and compared.
# With --repository its make_bundle writes several bundles, and is given the directory for them.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

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

hloserve serve "$work/repository" --http-port 0 --grpc-port 0 --admin-port 0 \
  --ports-file "$work/ports.json" &
server=$!

until [ -s "$work/ports.json" ]; do
  kill -0 "$server" # fails, and ends the script, when the server has gone
  sleep 0.1
done
port() { python -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$work/ports.json" "$1"; }
http=127.0.0.1:$(port http)
grpc=127.0.0.1:$(port grpc)

# Up is not ready: the programs are compiled now.
until curl -sf "http://$http/v2/health/ready" >/dev/null; do
  kill -0 "$server"
  sleep 0.2
done

python -m "examples.$example.compare" "${checkpoint[@]}" --http "$http" --grpc "$grpc"
