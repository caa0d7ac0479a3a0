# shellcheck shell=bash
# Sourced after lib.sh and versions.sh: pinned downloads below $DEPS, each in a directory with a stamp.

DEPS=$OUT/deps
LLAMA_LIBS_PACKAGE=@node-llama-cpp/linux-x64-vulkan # prebuilt llama.cpp
LLAMA_SRC_PACKAGE=node-llama-cpp                    # the matching source, as a git bundle

lock_deps() {
    mkdir -p "$DEPS"
    exec 9>"$DEPS/.lock"
    flock 9 # two at once would fetch everything twice
}
unlock_deps() { exec 9>&-; }

# unreachable REASON: ends a setup, and skips a test, for which UNREACHABLE=skip.
unreachable() {
    [ "${UNREACHABLE-}" != skip ] || skip "$*"
    die "$*"
}

# fetch_dir NAME STAMP FILL...: makes $DEPS/NAME by running FILL in a fresh directory that takes the name only when FILL and
# its checks have passed; an interrupted run leaves nothing that looks finished. STAMP is what .complete must hold.
fetch_dir() {
    local name=$1 stamp=$2 tmp
    shift 2
    if fetched "$DEPS/$name" "$stamp"; then
        return
    fi
    say "fetching $name ($stamp)"
    rm -rf "$DEPS"/.new.*
    tmp=$(mktemp -d "$DEPS/.new.XXXXXX")
    mkdir "$tmp/$name"
    "$@" "$tmp/$name" "$tmp"
    echo "$stamp" >"$tmp/$name/.complete"
    rm -rf "${DEPS:?}/$name"
    mv "$tmp/$name" "$DEPS/$name"
    rm -rf "$tmp"
}

npm_tarball() { # npm_tarball PACKAGE@VERSION SHA512 DIR: leaves PACKAGE's contents in DIR, and itself in DIR.tgz
    local spec=$1 dir=$3 file
    mkdir -p "$dir"
    file=$(cd "$dir" && npm pack --silent "$spec") || unreachable "npm pack $spec failed: is there a registry?"
    mv "$dir/$file" "$dir.tgz"
    echo "$2  $dir.tgz" | sha512sum --check --quiet - >&2 || die "$spec is not the pinned one: its sum differs from build/versions.sh"
    tar -xzf "$dir.tgz" -C "$dir" --strip-components=1 --no-same-owner
}
fill_llama() { # fill_llama VERSION SHA512 DIR TMP
    local spec=$LLAMA_LIBS_PACKAGE@$1 dir=$3 tmp=$4 lib
    npm_tarball "$spec" "$2" "$tmp/libs"
    mv "$tmp"/libs/bins/linux-x64-vulkan/*.so "$dir"
    cp "$tmp/libs/LICENSE" "$dir"
    for lib in libggml-base libggml-vulkan libggml-cpu-x64; do
        [ -e "$dir/$lib.so" ] || die "$spec has no $lib.so"
    done
}
fill_llama_src() { # fill_llama_src VERSION SHA512 COMMIT DIR TMP
    local spec=$LLAMA_SRC_PACKAGE@$1 commit=$3 dir=$4 tmp=$5 header
    npm_tarball "$spec" "$2" "$tmp/src"
    # Only headers: ggml's and llama's public ones, and ggml's inner ones, which tests/abi.c compares with ours.
    git -c init.defaultBranch=main init -q "$dir"
    git -C "$dir" fetch -q "$tmp/src/llama/gitRelease.bundle" HEAD
    git -C "$dir" sparse-checkout set --no-cone /ggml/include/ '/ggml/src/*.h' /include/ /LICENSE
    git -C "$dir" -c advice.detachedHead=false checkout -q "$commit"
    for header in ggml/include/ggml-backend.h include/llama.h; do
        [ -e "$dir/$header" ] || die "$spec has no $header in its source bundle"
    done
}

# use_release TAG: llama.cpp's release TAG. RELEASE_LIBDIR and RELEASE_SRC are then where its libraries and its headers are, or
# will be.
use_release() {
    local suffix=-$1
    release_pins "$1" || die "release '$1' is not one of build/versions.sh: ${RELEASES[*]}"
    [ "$1" != "$LLAMA_RELEASE" ] || suffix=''
    RELEASE_LIBDIR=$DEPS/llama$suffix RELEASE_SRC=$DEPS/llama-src$suffix
}
fetched() { [ "$(cat "$1/.complete" 2>/dev/null)" = "$2" ]; } # fetched DIR STAMP

fetch_release() { # fetch_release TAG: the two, where they are not there yet
    use_release "$1"
    fetch_dir "${RELEASE_LIBDIR##*/}" "$RELEASE_PACKAGE_VERSION" fill_llama "$RELEASE_PACKAGE_VERSION" "$RELEASE_LIBS_SHA512"
    fetch_dir "${RELEASE_SRC##*/}" "$RELEASE_PACKAGE_VERSION" \
        fill_llama_src "$RELEASE_PACKAGE_VERSION" "$RELEASE_SRC_SHA512" "$RELEASE_SRC_COMMIT"
    [ -e "$RELEASE_LIBDIR/libllama.vulkan.$1.so" ] || die "$RELEASE_LIBDIR is not of $1: it has no libllama.vulkan.$1.so"
}
