#!/usr/bin/env bash
# Export an example's model, check the bundle, serve it, ask three clients, compare with the source.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
# Usage: examples/export_serve_compare.sh EXAMPLE, the name of a directory beside this file.
set -euo pipefail
cd "$(dirname "$0")/.."
example=$1

work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

python -m "examples.$example.make_bundle" "$work/repository/$example" "$work/checkpoint"

hloserve check --run "$work/repository/$example"

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

python -m "examples.$example.compare" "$work/checkpoint" --http "$http" --grpc "$grpc"
