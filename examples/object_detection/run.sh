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

. "$root/examples/serving.sh"
repository=$(realpath -m "${2:-$work/repository}")
cd "$root"

python -m examples.object_detection.make_bundle "$repository"
hloserve check --run --strict "$repository"

serve "$repository"

python -m examples.object_detection.compare --http "$http" --grpc "$grpc" \
  --picture "$picture"
