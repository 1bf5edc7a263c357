#!/bin/sh
# Name the environment for training programs in settings.toml of the state folder, unless there are settings already.
set -eu
home="${CLARY_HOME:-$HOME/.clary}"
[ -e "$home/settings.toml" ] && exit 0
mkdir -p "$home"
printf '# Where images of AWS frameworks run. docs/settings.md lists every setting.\ndefault_python = "%s"\n' "$1" \
    > "$home/settings.toml"
