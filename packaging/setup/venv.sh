#!/bin/sh
# Makes or refreshes a virtual environment from a locked list of packages with hashes.
# Usage: venv.sh FOLDER REQUIREMENTS [PROJECT]   With PROJECT, that folder is installed into it, editable.
set -eu

folder=$1
requirements=$2
python=${PYTHON:-python3}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Rackwright needs Python 3.11 or newer as '$python'; name another with PYTHON=… " >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$python' cannot make virtual environments. On Debian, as root: apt-get install python3-venv" >&2
    exit 1
fi
if [ ! -x "$folder/bin/python" ]; then
    "$python" -m venv "$folder"
fi
echo "Installing the packages of $requirements into $folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --requirement "$requirements"
if [ $# -ge 3 ]; then
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable "$3"
fi
touch "$folder/.installed"
