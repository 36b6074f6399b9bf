#!/usr/bin/env bash
# Export the detector of shapes in two ways, check and serve it, ask for detections, compare the two,
# and draw a picture with boxes.
# Usage: examples/object_detection/run.sh [PICTURE.png [REPOSITORY]]
# The picture is build/detections.png unless said otherwise; the bundles are kept only in a REPOSITORY.
# Run in an environment that has hloserve's dev group; the ports are the system's choice.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
picture=$(realpath -m "${1:-$root/build/detections.png}")
mkdir -p "$(dirname "$picture")"

work=$(mktemp -d)
repository=$(realpath -m "${2:-$work/repository}")
cd "$root"
server=
stop() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

python -m examples.object_detection.make_bundle "$repository"
hloserve check --run --strict "$repository"

hloserve serve "$repository" --http-port 0 --grpc-port 0 --admin-port 0 \
  --ports-file "$work/ports.json" &
server=$!

until [ -s "$work/ports.json" ]; do
  kill -0 "$server" # fails, and ends the script, when the server has gone
  sleep 0.1
done
port() { python -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$work/ports.json" "$1"; }

# Up is not ready: the programs are compiled now.
until curl -sf "http://127.0.0.1:$(port http)/v2/health/ready" >/dev/null; do
  kill -0 "$server"
  sleep 0.2
done

python -m examples.object_detection.compare --http "127.0.0.1:$(port http)" \
  --grpc "127.0.0.1:$(port grpc)" --picture "$picture"
