#!/usr/bin/env bash
# Export the four models, check, serve, ask three clients, compare with the originals, show answers.
# Arguments are those of make_bundle; with other --lengths or a --checkpoint the originals differ.
exec "$(dirname "$0")/../export_serve_compare.sh" --no-checkpoint --repository transformers "$@"
