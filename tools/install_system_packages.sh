#!/bin/sh
# Install the Debian packages that tests need and that are missing; without root, say which.
set -eu
missing=""
for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "ok installed" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "not root: tests that need these packages will be skipped with a reason:$missing" >&2
    echo "to have them run: sudo apt-get install --no-install-recommends$missing" >&2
    exit 0
fi
apt-get update -qq
# shellcheck disable=SC2086 - a list of package names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
