#!/bin/sh
# Renews requirements/*.txt from pyproject.toml, with hashes. Needs uv.
set -eu
cd "$(dirname "$0")/../.."

compile() {
    output=$1
    shift
    uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
        --python-version 3.11 --output-file "requirements/$output.txt" "$@"
}

compile dev --all-extras --group dev pyproject.toml
for extra in agent control-plane simulators; do
    compile "$extra" --extra "$extra" --constraint requirements/dev.txt pyproject.toml
done
# What the Debian package carries: every part, nothing for development.
compile runtime --all-extras --constraint requirements/dev.txt pyproject.toml
compile peers --group peers
compile ironic --group ironic
# What the ramdisk's agent runs, and no more: it is loaded into memory on every start.
image=ramdisk/image/files/requirements.txt
echo "# The agent's packages in the image, locked. Made by packaging/setup/lock.sh." >$image
printf '%s\n' click cryptography msgspec structlog websockets |
    uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --python-version 3.11 --constraint requirements/dev.txt - >>$image
