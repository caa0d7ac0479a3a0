# What ctest runs. Included by CMakeLists.txt; the programs come from tests/CMakeLists.txt.
#
# Labels: go, abi, preload (the hooks), vulkan (ranks on lavapipe), fault (a driver that fails), cli (vkcomm), host (real
# llama.cpp runs), client (llama.cpp's own programs, --full only), gpu (real GPUs; skipped by name where there are none),
# sanitize (C with sanitizers).

# vkcomm_test(NAME LABEL COMMAND...): one test with the environment that the scripts of build/ expect.
function(vkcomm_test name label)
    add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    get_filename_component(go_dir ${GO} DIRECTORY)
    set_tests_properties(${name} PROPERTIES
        LABELS ${label}
        TIMEOUT 900
        SKIP_RETURN_CODE 77
        ENVIRONMENT "VKCOMM_OUT=${CMAKE_BINARY_DIR};GOTOOLCHAIN=local;CGO_ENABLED=1"
        ENVIRONMENT_MODIFICATION PATH=path_list_prepend:${go_dir})
endfunction()

set(BUILD ${CMAKE_SOURCE_DIR}/build)
set(RANKS ${BUILD}/ranks)

# ---- go --------------------------------------------------------------------------------------------------------------
vkcomm_test(gofmt go ${BUILD}/checks/gofmt)
vkcomm_test(imports go ${BUILD}/checks/imports)
vkcomm_test(go-vet go ${GO} vet ./...)
vkcomm_test(go-test-race go ${GO} test -race ./allreduce/... ./semaphores/... ./plugin/choice/...)
# Some packages open Vulkan devices; those of lavapipe, so that the result is the same on every machine.
vkcomm_test(go-test go ${RANKS} lavapipe 2 ${GO} test ./...)
# Inputs that nobody thought of, a fixed number of them, so that how long it takes does not decide what is tried.
set(FUZZ_CONFIG 20000x)
set(FUZZ_CHECK 1000x)
if(VKCOMM_FULL_TESTS)
    set(FUZZ_CONFIG 2000000x)
    set(FUZZ_CHECK 100000x)
endif()
vkcomm_test(fuzz-config go ${GO} test -run "^$" -fuzz "^FuzzConfig$" -fuzztime ${FUZZ_CONFIG} ./plugin)
vkcomm_test(fuzz-algo go ${GO} test -run "^$" -fuzz "^FuzzAlgo$" -fuzztime ${FUZZ_CONFIG} ./plugin)
vkcomm_test(fuzz-fdinfo go ${GO} test -run "^$" -fuzz "^FuzzParseFdinfo$" -fuzztime ${FUZZ_CONFIG} ./plugin)
vkcomm_test(fuzz-check go ${GO} test -run "^$" -fuzz "^FuzzCheck$" -fuzztime ${FUZZ_CHECK} ./allreduce)

# ---- shaders ---------------------------------------------------------------------------------------------------------
vkcomm_test(shaders-current vulkan ${BUILD}/checks/shaders ${FRESH_DIR} ${SHADER_DIR})
foreach(source ${SHADERS})
    get_filename_component(name ${source} NAME_WE)
    vkcomm_test(spirv-val-${name} vulkan ${SPIRV_VAL} --target-env vulkan1.2 ${SHADER_DIR}/${name}.spv)
endforeach()
# AMD's compiler, without a GPU
set(RADV_PACE)
if(VKCOMM_FULL_TESTS)
    set(RADV_PACE --full)
endif()
foreach(family gfx1100 navi21 vega10 polaris10)
    string(TOUPPER ${family} forced)
    vkcomm_test(shaders-radv-${family} vulkan ${BUILD}/checks/radv ${forced} ${RADV_PACE})
endforeach()

# ---- ABI -------------------------------------------------------------------------------------------------------------
vkcomm_test(exports abi ${BUILD}/checks/exports ${GO_OBJECT} ${SHIM})
# vkimpl's C is otherwise compiled by cgo alone, which shows no warnings.
file(GLOB VKIMPL_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/vkimpl/*.c)
if(VKIMPL_SOURCES)
    vkcomm_test(c-warnings abi ${CMAKE_C_COMPILER} -std=gnu11 -fsyntax-only -Wall -Wextra -Werror ${VKIMPL_SOURCES})
endif()
if(TARGET abi)
    vkcomm_test(abi abi $<TARGET_FILE:abi>)
endif()

if(TARGET relay-test)
    vkcomm_test(relay-host-side vulkan $<TARGET_FILE:relay-test>)
    vkcomm_test(relay-words vulkan $<TARGET_FILE:words-test>)
endif()

# ---- the trio, driven through the real ggml ----------------------------------------------------------------------------
if(TARGET harness)
    set(HARNESS $<TARGET_FILE:harness> --lib-dir ${VKCOMM_LLAMA_LIBDIR})
    set(PRELOAD env LD_PRELOAD=${SHIM})
    set(EXACT GGML_VK_COMM_FP32=1) # F32 on the wire: the bits of stock llama.cpp
    if(NOT VKCOMM_FULL_TESTS)
        set(PACE --quick)
    endif()

    # hooks
    vkcomm_test(stock-has-no-trio preload ${RANKS} lavapipe 2 ${HARNESS} --expect-stock)
    vkcomm_test(preload-off preload ${RANKS} lavapipe 2 ${PRELOAD} GGML_VK_COMM_OFF=1 ${HARNESS} --expect-stock)
    vkcomm_test(preload-go-object preload
        ${RANKS} lavapipe 2 env LD_PRELOAD=${GO_OBJECT} ${EXACT} ${HARNESS} --ranks 2 --case lookup --case init --case sizes --quick)
    vkcomm_test(preload-both preload
        ${RANKS} lavapipe 2 env LD_PRELOAD=${SHIM}:${GO_OBJECT} ${EXACT} ${HARNESS} --ranks 2 --case lookup --case init --case sizes --quick)
    vkcomm_test(preload-without-go-object preload ${BUILD}/checks/lonely-shim ${SHIM} ${RANKS} lavapipe 2 ${HARNESS} --expect-stock)
    vkcomm_test(preload-bystander preload ${BUILD}/checks/bystander ${SHIM})

    # reductions; `uses PATTERN` makes sure that they were done in the way that the test is named after
    set(USES ${BUILD}/checks/uses)
    foreach(n 2 3 4 5)
        vkcomm_test(harness-n${n}-proxy vulkan ${USES} "proxy ordering"
            ${RANKS} lavapipe ${n} ${PRELOAD} ${EXACT} GGML_VK_COMM_PROXY=1 ${HARNESS} --ranks ${n} ${PACE})
    endforeach()
    # graphs recorded on threads, by a host that does not keep to the meta backend's order either
    foreach(n 2 3)
        vkcomm_test(harness-n${n}-parallel vulkan ${USES} "graphs recorded in parallel"
            ${RANKS} lavapipe ${n} ${PRELOAD} ${EXACT} GGML_VK_COMM_PARALLEL=1 ${HARNESS} --ranks ${n} ${PACE})
    endforeach()
    # every algorithm with every wire; the ring adds in another order than stock
    set(MATRIX_RANKS 2 3)
    if(VKCOMM_FULL_TESTS)
        set(MATRIX_RANKS 2 3 4 5)
    endif()
    foreach(n ${MATRIX_RANKS})
        foreach(algorithm singleshot pipeline twoshot ring)
            foreach(wire f32 f16 bf16)
                set(accuracy ${wire})
                if(wire STREQUAL f32 AND NOT algorithm STREQUAL ring)
                    set(accuracy exact)
                endif()
                vkcomm_test(harness-n${n}-${algorithm}-${wire} vulkan ${USES} "[ ,]${algorithm}:0-max.*wire ${wire}"
                    ${RANKS} lavapipe ${n} ${PRELOAD} GGML_VK_COMM_WIRE=${wire} GGML_VK_COMM_ALGO=${algorithm}:0-max
                    ${HARNESS} --ranks ${n} --accuracy ${accuracy} --case sizes --case large ${PACE})
            endforeach()
        endforeach()
    endforeach()
    vkcomm_test(harness-n2-ring-by-switch vulkan ${USES} "[ ,]ring:" ${RANKS} lavapipe 2
        ${PRELOAD} ${EXACT} GGML_VK_COMM_RING=1 ${HARNESS} --ranks 2 --accuracy f32 --case sizes --case large ${PACE})

    # sizes at random over all algorithms, with staging so small that most tensors take several rounds
    set(REDUCTIONS 1000)
    if(VKCOMM_FULL_TESTS)
        set(REDUCTIONS 10000)
    endif()
    vkcomm_test(harness-n3-mixed vulkan ${USES} "pipeline:8K-64K,twoshot:64K-256K,ring:256K-max" ${RANKS} lavapipe 3
        ${PRELOAD} ${EXACT} GGML_VK_COMM_STAGING_MB=1 GGML_VK_COMM_ALGO=singleshot:0-8K,pipeline:8K-64K,twoshot:64K-256K,ring:256K-max
        ${HARNESS} --ranks 3 --accuracy f32 --case soak --soak ${REDUCTIONS})
    # communicators of every algorithm and wire by turns, with and without P2P; memory and descriptors stay as they were
    vkcomm_test(soak-turns vulkan ${RANKS} lavapipe 3 ${PRELOAD} ${HARNESS} --ranks 2,3 --case turns --quick)
    if(VKCOMM_FULL_TESTS)
        vkcomm_test(soak-million vulkan ${RANKS} lavapipe 3 ${PRELOAD} ${HARNESS} --ranks 2,3 --case turns --turns 1000000)
        set_tests_properties(soak-million PROPERTIES TIMEOUT 10800)
    endif()
    vkcomm_test(harness-n2-checks-itself vulkan ${USES} "GGML_VK_COMM_CHECK=1" ${RANKS} lavapipe 2
        ${PRELOAD} ${EXACT} GGML_VK_COMM_CHECK=1 ${HARNESS} --ranks 2 --case sizes --case soak --quick)
    foreach(n 2 3)
        vkcomm_test(harness-n${n}-held vulkan ${USES} "proxy ordering" ${RANKS} lavapipe ${n}
            ${PRELOAD} ${EXACT} GGML_VK_COMM_PROXY=1 ${HARNESS} --ranks ${n} --case held)
    endforeach()
    vkcomm_test(harness-n2-idle vulkan ${USES} "proxy ordering" ${RANKS} lavapipe 2
        ${PRELOAD} GGML_VK_COMM_PROXY=1 ${HARNESS} --ranks 2 --case proxy-idle)

    # The layer slows waits down a great deal, so little is run under it.
    vkcomm_test(harness-n2-validation vulkan ${RANKS} lavapipe 2 env ${EXACT} ${BUILD}/checks/validation
        ${PRELOAD} ${HARNESS} --ranks 2 --case sizes --case refusals --quick)

    # peer-to-peer staging: lavapipe shares memory between its devices as OPAQUE_FD
    foreach(n 2 3 4)
        vkcomm_test(harness-n${n}-p2p vulkan ${USES} "staging 16 MiB of device memory (p2p opaque_fd)"
            ${RANKS} lavapipe ${n} ${PRELOAD} ${EXACT} GGML_VK_COMM_P2P=1 ${HARNESS} --ranks ${n} ${PACE})
        foreach(algorithm singleshot pipeline twoshot ring)
            vkcomm_test(harness-n${n}-p2p-${algorithm}-f16 vulkan ${USES} "(p2p opaque_fd).*[ ,]${algorithm}:0-max.*wire f16"
                ${RANKS} lavapipe ${n} ${PRELOAD} GGML_VK_COMM_P2P=1 GGML_VK_COMM_ALGO=${algorithm}:0-max
                ${HARNESS} --ranks ${n} --accuracy f16 --case sizes --case large --quick)
        endforeach()
        foreach(algorithm singleshot pipeline twoshot ring)
            set(accuracy exact)
            if(algorithm STREQUAL ring)
                set(accuracy f32)
            endif()
            vkcomm_test(harness-n${n}-p2p-${algorithm}-f32 vulkan ${USES} "(p2p opaque_fd).*[ ,]${algorithm}:0-max.*wire f32"
                ${RANKS} lavapipe ${n} ${PRELOAD} ${EXACT} GGML_VK_COMM_P2P=1 GGML_VK_COMM_ALGO=${algorithm}:0-max
                ${HARNESS} --ranks ${n} --accuracy ${accuracy} --case sizes --case large --quick)
        endforeach()
    endforeach()
    vkcomm_test(harness-n3-p2p-life vulkan ${USES} "(p2p opaque_fd)" ${RANKS} lavapipe 3
        ${PRELOAD} ${EXACT} GGML_VK_COMM_P2P=1 ${HARNESS} --ranks 3 --case life --life 200)
    vkcomm_test(harness-n3-p2p-mixed vulkan ${USES} "(p2p opaque_fd).*pipeline:8K-64K,twoshot:64K-256K,ring:256K-max" ${RANKS} lavapipe 3
        ${PRELOAD} ${EXACT} GGML_VK_COMM_P2P=1 GGML_VK_COMM_STAGING_MB=1
        GGML_VK_COMM_ALGO=singleshot:0-8K,pipeline:8K-64K,twoshot:64K-256K,ring:256K-max
        ${HARNESS} --ranks 3 --accuracy f32 --case soak --soak ${REDUCTIONS})
    vkcomm_test(harness-n2-p2p-validation vulkan ${RANKS} lavapipe 2 env ${EXACT} GGML_VK_COMM_P2P=1 ${BUILD}/checks/validation
        ${PRELOAD} ${HARNESS} --ranks 2 --case sizes --case refusals --quick)

    # what only different GPUs can show
    vkcomm_test(harness-gpu-n2-p2p gpu ${RANKS} gpu 2 ${PRELOAD} ${EXACT} GGML_VK_COMM_P2P=1 ${HARNESS} --ranks 2 ${PACE})
    foreach(n 2 4)
        vkcomm_test(harness-gpu-n${n} gpu ${RANKS} gpu ${n} ${PRELOAD} ${EXACT} ${HARNESS} --ranks ${n} ${PACE})
        vkcomm_test(harness-gpu-n${n}-proxy gpu
            ${USES} "proxy ordering" ${RANKS} gpu ${n} ${PRELOAD} ${EXACT} GGML_VK_COMM_PROXY=1 ${HARNESS} --ranks ${n} ${PACE})
    endforeach()
    vkcomm_test(harness-gpu-n2-ring gpu ${USES} "[ ,]ring:"
        ${RANKS} gpu 2 ${PRELOAD} ${EXACT} GGML_VK_COMM_RING=1 ${HARNESS} --ranks 2 --accuracy f32 --case sizes --case large ${PACE})
endif()

# ---- what the preloaded objects do to a process --------------------------------------------------------------------------
include(tests/preload/tests.cmake)

# ---- a driver that fails ----------------------------------------------------------------------------------------------
include(tests/layer/tests.cmake)

# ---- sanitizers -------------------------------------------------------------------------------------------------------
include(tests/sanitize/tests.cmake)

# ---- vkcomm ----------------------------------------------------------------------------------------------------------
include(cmd/vkcomm/tests.cmake)

# ---- measurements: that they work, not how fast ---------------------------------------------------------------------------
include(tests/gpu/tests.cmake)

# ---- other llama.cpp, other programs ----------------------------------------------------------------------------------------
include(tests/hosts/tests.cmake)

# ---- real llama.cpp ------------------------------------------------------------------------------------------------------
if(TARGET llama-run AND TARGET make-gguf)
    # On lavapipe stock llama.cpp reads buffers that it freed, and dies of it in some shapes (8 heads over 3 ranks: 12 of 20
    # runs). The tests judge the plugin, so that they run under a layer which frees none.
    get_target_property(KEEP_DIR keep_layer MANIFEST_DIR)
    set(KEEP env VK_LAYER_PATH=${KEEP_DIR} VK_INSTANCE_LAYERS=VK_LAYER_VKCOMM_keep)
    # host_test(NAME RANKS SIZE ENVIRONMENT...): all logits bit-equal without and with the plugin.
    function(host_test name ranks size)
        vkcomm_test(host-${name} host ${KEEP} ${BUILD}/host-compare lavapipe ${ranks} ${size} ${EXACT} ${ARGN})
    endfunction()
    host_test(n2 2 tiny)
    host_test(n3 3 tiny) # 8 heads: uneven shares
    host_test(n4 4 tiny)
    host_test(n2-proxy 2 tiny GGML_VK_COMM_PROXY=1)
    host_test(n2-parallel 2 tiny GGML_VK_COMM_PARALLEL=1)
    host_test(n3-parallel 3 tiny GGML_VK_COMM_PARALLEL=1)
    vkcomm_test(host-n2-steady host ${KEEP} ${BUILD}/checks/steady)

    # Uneven shares, ranks with none, experts, embeddings.
    # shape_test(NAME RANKS SIZE ARGUMENT...): like host_test, with llama-run's arguments.
    function(shape_test name ranks size)
        host_test(${name} ${ranks} ${size} -- ${ARGN})
    endfunction()
    set(SHORT --prompt-tokens 24 --gen 8)
    shape_test(n2-split-2-1 2 tiny ${SHORT} --tensor-split 2,1)
    shape_test(n2-split-1-0 2 tiny ${SHORT} --tensor-split 1,0)
    shape_test(n2-moe 2 moe ${SHORT})
    shape_test(n2-embeddings 2 tiny --prompt-tokens 100 --gen 0 --embeddings mean)
    if(VKCOMM_FULL_TESTS)
        host_test(n2-small 2 small)
        host_test(n4-small 4 small)
        shape_test(n2-split-3-1 2 tiny ${SHORT} --tensor-split 3,1)
        shape_test(n2-split-0-1 2 tiny ${SHORT} --tensor-split 0,1)
        shape_test(n2-moe-split-3-1 2 moe ${SHORT} --tensor-split 3,1)
        shape_test(n3-split-2-1-1 3 twelve ${SHORT} --tensor-split 2,1,1)
        shape_test(n3-split-1-0-1 3 twelve ${SHORT} --tensor-split 1,0,1)
        shape_test(n3-moe 3 moe ${SHORT})
        foreach(pooling none last)
            shape_test(n2-embeddings-${pooling} 2 tiny --prompt-tokens 100 --gen 0 --embeddings ${pooling})
        endforeach()
        shape_test(n2-ubatch-1 2 tiny --prompt-tokens 60 --gen 4 --ubatch 1)
        shape_test(n2-ubatch-7 2 tiny --prompt-tokens 200 --gen 4 --ubatch 7)
        shape_test(n2-ubatch-64 2 tiny --prompt-tokens 600 --gen 4 --ubatch 64)
        shape_test(n2-ubatch-512 2 tiny --prompt-tokens 600 --gen 4 --ubatch 512)
        shape_test(n2-ubatch-2048 2 tiny --prompt-tokens 2100 --gen 4 --ubatch 2048)
        set_tests_properties(host-n2-ubatch-2048 PROPERTIES TIMEOUT 1800)
        # 8 MB of weights and 4 MiB of KV cache in buffers of at most 2 MB
        vkcomm_test(host-n2-many-buffers host
            ${KEEP} GGML_VK_FORCE_MAX_ALLOCATION_SIZE=2000000 GGML_VK_FORCE_MAX_BUFFER_SIZE=2000000
            ${BUILD}/host-compare lavapipe 2 tiny ${EXACT} -- --prompt-tokens 200 --gen 4 --ctx 2048)
        # installs into a fresh Debian, for which it wants root and a mirror
        vkcomm_test(package host env VKCOMM_LLAMA_LIBDIR=${VKCOMM_LLAMA_LIBDIR} ${BUILD}/checks/package)
        set_tests_properties(package PROPERTIES TIMEOUT 5400) # build/clients included
    endif()
    foreach(ranks 2 4)
        vkcomm_test(host-gpu-n${ranks} gpu ${BUILD}/host-compare gpu ${ranks} small ${EXACT})
    endforeach()
endif()

# ---- llama.cpp's own programs ---------------------------------------------------------------------------------------------
if(VKCOMM_FULL_TESTS AND TARGET make-gguf)
    include(tests/clients/tests.cmake)
endif()
