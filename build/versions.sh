# shellcheck shell=bash disable=SC2034  # sourced
# The pinned inputs of the build, in one place. To move one: change it here, then run build/test.

# Go: the least version that go.mod accepts, and the one fetched (as a Go module) where the machine's is older.
GO_MIN=1.26
GO_VERSION=1.26.8

# An unmodified llama.cpp v0.5.0, as npm packages: prebuilt Linux x86-64 Vulkan libraries, and the matching source.
# The sums are those of the tarballs that `npm pack` writes.
LLAMA_PACKAGE_VERSION=3.22.1
LLAMA_LIBS_PACKAGE=@node-llama-cpp/linux-x64-vulkan
LLAMA_LIBS_SHA512=6c1c6a53e24e701bb59dbe508f6cdc31c8be241c93d44f046a31ef62877235f5483e41215e1fbf1ccc11d7f053ef13f4f182b4864b3e90cf1f825111d0ff0912
LLAMA_SRC_PACKAGE=node-llama-cpp
LLAMA_SRC_SHA512=6e5b488a9b9699cd76dc7eed30880318a4ac4ab866865418795502e3c5d38d55bb5c624988927209d95333343f2e25a83e4183a5c2f816f883a60c3ba9f4e20f
LLAMA_SRC_COMMIT=de3ff815ea7d559ee917f063901b8986f038abc6
