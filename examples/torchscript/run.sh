#!/usr/bin/env bash
# Export a voice activity detector from its TorchScript file, check and serve it, stream audio
# through it and compare with the file.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

python -m examples.torchscript.make_bundle "$work/repository/vad"
hloserve check --run "$work/repository/vad"

hloserve serve "$work/repository" --http-port 0 --grpc-port 0 --admin-port 0 \
  --ports-file "$work/ports.json" &
server=$!

until [ -s "$work/ports.json" ]; do
  kill -0 "$server" # fails, and ends the script, when the server has gone
  sleep 0.1
done
port() { python -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$work/ports.json" "$1"; }

# Up is not ready: the program is compiled for each size now.
until curl -sf "http://127.0.0.1:$(port http)/v2/health/ready" >/dev/null; do
  kill -0 "$server"
  sleep 0.2
done

python -m examples.torchscript.compare --grpc "127.0.0.1:$(port grpc)"
