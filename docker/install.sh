#!/bin/sh
# Usage: install.sh STACK [PATTERN]
# Installs the distributions of a stack's lock whose names match PATTERN (an awk expression), or what is still missing,
# into the environment that `cu130-stack build` then finds and completes. One call a layer keeps layers small: registries
# refuse large ones, and they are pulled side by side. It knows the lock alone, so that it can run before the code is there.
set -eu
stack=$1
pattern=${2-}
tag=$(python3 -c 'import sys; print("py%d%d" % sys.version_info[:2])')
lock=/opt/locks/$stack-$tag.txt
if [ ! -f "$lock" ]; then
    echo "$stack has no lock for this image's Python ($tag); there are: $(ls /opt/locks)" >&2
    exit 1
fi
sha256=$(sha256sum "$lock" | cut -d ' ' -f 1)
build=/opt/cu130-stack/$stack/builds/$tag-$(echo "$sha256" | cut -c 1-12)
# On the file system of the environment, so that files are linked and not copied; removed within the same layer.
export UV_CACHE_DIR=/opt/cu130-stack/.uv

work=$(mktemp -d)
cp "$lock" "$work/lock.txt"
set --
for wheel in /wheels/*.whl; do
    if [ -f "$wheel" ]; then
        set -- --no-index --find-links /wheels
        name=$(basename "$wheel" | sed 's/+/%2B/')
        sed -i "s|@ https://[^ ]*/$name|@ file:///wheels/$name|" "$work/lock.txt"
    fi
done

if [ ! -d "$build/env" ]; then
    mkdir -p "$build"
    cp "$lock" "$build/lock.txt"
    uv venv --no-project --no-config --python python3 "$build/env"
fi
python=$build/env/bin/python
if [ -n "$pattern" ]; then
    awk -v pattern="$pattern" '/^[^ #]/ { take = $0 ~ pattern } take' "$work/lock.txt" > "$work/part.txt"
    uv pip install --python "$python" --no-deps --require-hashes --only-binary :all: "$@" --requirement "$work/part.txt"
else
    uv pip sync --python "$python" --require-hashes --only-binary :all: "$@" "$work/lock.txt"
    echo "$sha256" > "$build/installed"
fi
rm -r "$UV_CACHE_DIR" "$work"
