#!/usr/bin/env bash
# Export all-MiniLM-L6-v2, check, serve, ask three clients, and compare with the original.
exec "$(dirname "$0")/../export_serve_compare.sh" --no-checkpoint minilm
