#!/usr/bin/env bash
# Export the four models, check, serve, ask three clients, compare with the originals, show answers.
exec "$(dirname "$0")/../export_serve_compare.sh" --no-checkpoint --repository transformers
