#!/bin/sh
# Makes the venv in which `make clients` runs, given its folder; and installs Debian's espeak-ng, by which a sentence is spoken, where that is allowed.
set -eu
python="${PYTHON:-python3}"
test -x "$1/bin/python" || "$python" -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check -r clients/requirements.txt -e ".[build]"
if ! command -v espeak-ng >/dev/null && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    apt-get update -qq && apt-get install -y -qq espeak-ng >/dev/null || echo "espeak-ng could not be installed" >&2
fi
