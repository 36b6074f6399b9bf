# Serve bundles for the length of a script, which sources this file with `set -euo pipefail`.
# `work` is a directory that goes with the script; `serve REPOSITORY` starts a server on ports of the
# system's choice, waits until its models are ready, and says by `http` and `grpc` where it is.

work=$(mktemp -d)
server=
stop() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null && wait "$server" || true; fi
  rm -rf "$work"
}
trap stop EXIT

port() { python -c "import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])" "$work/ports.json" "$1"; }

serve() {
  hloserve serve "$1" --http-port 0 --grpc-port 0 --admin-port 0 --ports-file "$work/ports.json" &
  server=$!
  until [ -s "$work/ports.json" ]; do
    kill -0 "$server" # fails, and ends the script, when the server has gone
    sleep 0.1
  done
  http=127.0.0.1:$(port http)
  grpc=127.0.0.1:$(port grpc)
  # Up is not ready: the programs are compiled now.
  until curl -sf "http://$http/v2/health/ready" >/dev/null; do
    kill -0 "$server"
    sleep 0.2
  done
}
