#!/bin/sh
# Prints what dist is built from, as one hash; with "write" records it in
# dist/.sources, with "check" compares it and fails if dist is not current.
# Only files that git knows count, so add new ones before.
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
sum=$(git ls-files -z web/src web/index.html web/package-lock.json web/vite.config.ts web/tsconfig.json |
	sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
case "${1:-print}" in
print) echo "$sum" ;;
write) echo "$sum" >web/dist/.sources ;;
check)
	[ "$sum" = "$(cat web/dist/.sources)" ] || {
		echo "web/dist is not built from web/src: run npm run dist in web, and commit" >&2
		exit 1
	}
	;;
*)
	echo "usage: $0 [print|write|check]" >&2
	exit 64
	;;
esac
