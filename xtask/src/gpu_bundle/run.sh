#!/bin/sh
# Runs the tests and the measurements of this folder on the first NVIDIA device of the machine:
#   sh run.sh tests|kernels|models|torch|pretrained|ranks [--out FOLDER] [--quick] [--small]
# Each of the six takes less than ten minutes; without a name they run one after the other. See
# `run.sh --help`. The interpreter is the first that has torch; LOWTIDE_PYTHON names another.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
python=
first=
for candidate in ${LOWTIDE_PYTHON:-python3 python /opt/*/.venv/bin/python3 /opt/*/bin/python3}; do
  command -v "$candidate" >/dev/null 2>&1 || continue
  first=${first:-$candidate}
  if "$candidate" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'; then
    python=$candidate
    break
  fi
done
python=${python:-$first}
if [ -z "$python" ]; then
  echo "run.sh: no ${LOWTIDE_PYTHON:-python3}: LOWTIDE_PYTHON names one, best one with torch" >&2
  exit 2
fi
exec "$python" "$here/run.py" "$@"
