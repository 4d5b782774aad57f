#!/bin/sh
# Runs everything in this folder on the first NVIDIA device of the machine, within 8 minutes, and
# writes results.json and results.md beside itself: see `run.sh --help`.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
python=${LOWTIDE_PYTHON:-python3}
if ! command -v "$python" >/dev/null 2>&1; then
  echo "run.sh: no $python: LOWTIDE_PYTHON names one, best one with torch" >&2
  exit 2
fi
exec "$python" "$here/run.py" "$@"
