# A driver that fails, is slow, gets lost or is other devices than lavapipe. Included by build/tests.cmake, which has
# vkcomm_test and RANKS.

if(NOT TARGET layer-probe)
    return()
endif()

set(LAYER_PROBE $<TARGET_FILE:layer-probe>)
set(LAYER $<TARGET_FILE:fault_layer>)
set(LAYER_RANKS ${RANKS} lavapipe 2 env VKCOMM_TEST_LIBDIR=${VKCOMM_LLAMA_LIBDIR})
set(LAYER_HARNESS $<TARGET_FILE:harness> --lib-dir ${VKCOMM_LLAMA_LIBDIR} --quick)
set(LAYER_CASES --case sizes --case large --case denormal --case refusals --case order)

set(SWEEP_ALL)
if(VKCOMM_FULL_TESTS)
    set(SWEEP_ALL --full)
endif()
vkcomm_test(layer-sweep fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/sweep ${SHIM} ${LAYER_PROBE} ${LAYER} ${SWEEP_ALL})
set_tests_properties(layer-sweep PROPERTIES TIMEOUT 3600)
vkcomm_test(layer-lose fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/lose ${SHIM} ${LAYER_PROBE} ${LAYER})
set(LAYER_DIE ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/die ${SHIM} ${LAYER_PROBE} ${LAYER})
vkcomm_test(layer-die fault ${LAYER_DIE} lost)
if(VKCOMM_FULL_TESTS) # waits for 30 s without progress
    vkcomm_test(layer-stuck fault ${LAYER_DIE} stuck)
endif()

# layer_run(NAME DEVICES [CASES case...] [ACCURACY accuracy] LINES pattern... [SET variable=value...]): right results on
# DEVICES, a list as VKCOMM_LAYER_DEVICES has it, with lines of the run that match the patterns.
function(layer_run name devices)
    cmake_parse_arguments(arg "" ACCURACY "CASES;LINES;SET" ${ARGN})
    string(REGEX MATCHALL "," commas "${devices}")
    list(LENGTH commas ranks)
    math(EXPR ranks "${ranks} + 1")
    set(command ${LAYER_HARNESS} --ranks ${ranks})
    if(arg_ACCURACY)
        list(APPEND command --accuracy ${arg_ACCURACY})
    endif()
    if(NOT arg_CASES)
        set(arg_CASES ${LAYER_CASES})
    endif()
    set(lines)
    foreach(line IN LISTS arg_LINES)
        list(APPEND lines --line ${line})
    endforeach()
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} right ${lines}
        VKCOMM_LAYER_DEVICES=${devices} ${arg_SET} -- ${command} ${arg_CASES})
endfunction()

# layer_declined(NAME DEVICES PATTERN VARIABLE=VALUE...): no communicator, and a line that says why.
function(layer_declined name devices pattern)
    vkcomm_test(layer-${name} fault ${LAYER_RANKS} ${CMAKE_SOURCE_DIR}/tests/layer/profile ${LAYER} ${SHIM} declined --line ${pattern}
        VKCOMM_LAYER_DEVICES=${devices} ${ARGN} -- ${LAYER_PROBE} ${LAYER})
endfunction()

# ---- what a device lacks -------------------------------------------------------------------------------------------------
layer_declined(no-external-memory-host no-external-memory-host,lavapipe "rank 0 cannot import host memory")
layer_declined(no-timeline lavapipe,no-timeline "rank 1 has no timeline semaphores")
layer_declined(few-storage-buffers few-storage-buffers,few-storage-buffers
    "binds 3 storage buffers to a kernel, 2 ranks need 4")
foreach(limit import-alignment-64k offset-alignment-256 small-storage-range)
    layer_run(${limit} ${limit},lavapipe LINES "^vkcomm_layer: the plugin is held to the device's limits")
endforeach()
# On one device the same request is granted: harness-n2-p2p.
layer_run(no-dma-buf lavapipe,lavapipe SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*staging 16 MiB of host memory.*GGML_VK_COMM_P2P=1")
foreach(rank 0 1)
    layer_run(slow-rank${rank} lavapipe,lavapipe SET VKCOMM_LAYER_DELAY=${rank}:5
        LINES "AllReduce active.*proxy ordering.*measured up to 16K" "^vkcomm_layer: device ${rank} is slow")
    layer_run(native-slow-rank${rank} nvidia,nvidia CASES --case sizes SET VKCOMM_LAYER_DELAY=${rank}:5
        LINES "AllReduce active.*native ordering.*measured up to 16K" "^vkcomm_layer: device ${rank} is slow")
endforeach()

# ---- native ordering, copy queues, dma-buf -----------------------------------------------------------------------------------
set(LAYER_RANK_COUNTS 3)
if(VKCOMM_FULL_TESTS)
    set(LAYER_RANK_COUNTS 2 3)
endif()
set(NVIDIA_2 nvidia,nvidia)
set(NVIDIA_3 nvidia,nvidia,nvidia)
set(RADV_2 radv,radv)
set(RADV_3 radv,radv,radv)
set(SHARING_2 radv+timeline-fd,radv+timeline-fd) # all at once
set(SHARING_3 radv+timeline-fd,radv+timeline-fd,radv+timeline-fd)
set(JITTER_2 ${SHARING_2}+jitter)
set(JITTER_3 radv+timeline-fd+jitter,radv+timeline-fd+jitter,radv+timeline-fd+jitter)
set(COPIES_2 "the plugin uses the transfer queue of device 0" "the plugin uses the transfer queue of device 1")
set(COPIES_3 ${COPIES_2} "the plugin uses the transfer queue of device 2")
foreach(n 2 3)
    layer_run(native-n${n} ${NVIDIA_${n}} LINES "AllReduce active.*native ordering, staging 16 MiB of host memory")
    layer_run(copies-n${n} ${RADV_${n}} SET GGML_VK_COMM_ALGO=pipeline:0-max
        LINES "AllReduce active.*proxy ordering.*pipeline:0-max" ${COPIES_${n}})
    layer_run(native-copies-n${n} ${JITTER_${n}} SET GGML_VK_COMM_ALGO=pipeline:0-max
        LINES "AllReduce active.*native ordering, staging 16 MiB of host memory.*pipeline:0-max" ${COPIES_${n}})
endforeach()
foreach(n ${LAYER_RANK_COUNTS})
    foreach(algorithm singleshot pipeline twoshot ring)
        set(accuracy exact)
        if(algorithm STREQUAL ring)
            set(accuracy f32)
        endif()
        set(forced SET GGML_VK_COMM_ALGO=${algorithm}:0-max)
        layer_run(native-n${n}-${algorithm} ${NVIDIA_${n}} ACCURACY ${accuracy} CASES --case sizes --case large ${forced}
            LINES "AllReduce active.*native ordering, staging 16 MiB of host memory.*${algorithm}:0-max")
        layer_run(dma-buf-n${n}-${algorithm} ${SHARING_${n}} ACCURACY ${accuracy} CASES --case sizes --case large
            ${forced} GGML_VK_COMM_P2P=1
            LINES "AllReduce active.*native ordering, staging 16 MiB of device memory (p2p dma_buf).*${algorithm}:0-max")
    endforeach()
endforeach()
layer_run(dma-buf-proxy ${RADV_3} SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*proxy ordering, staging 16 MiB of device memory (p2p dma_buf)")
layer_run(dma-buf-mixed ${JITTER_3} ACCURACY f32 CASES --case soak --soak 300
    SET GGML_VK_COMM_P2P=1 GGML_VK_COMM_STAGING_MB=1
        GGML_VK_COMM_ALGO=singleshot:0-8K,pipeline:8K-64K,twoshot:64K-256K,ring:256K-max
    LINES "AllReduce active.*native ordering, staging 1 MiB of device memory (p2p dma_buf).*pipeline:8K-64K" ${COPIES_3})

# ---- two vendors ---------------------------------------------------------------------------------------------------------
layer_run(two-vendors-n2 nvidia,radv
    LINES "native ordering is not used: ranks 0 and 1 have different drivers" "AllReduce active.*proxy ordering")
layer_run(two-vendors-n3 nvidia,radv,radv SET GGML_VK_COMM_ALGO=pipeline:0-max
    LINES "AllReduce active.*proxy ordering" "the plugin uses the transfer queue of device 1")
layer_run(two-vendors-p2p nvidia,radv SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*proxy ordering, staging 16 MiB of device memory (p2p dma_buf) of ranks .0. and host memory"
        "P2P: staging of rank 1 for rank 0: the reader's driver has no memory type for it (memoryTypeBits 0)")
layer_run(dma-buf-no-types ${NVIDIA_2} SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*native ordering, staging 16 MiB of host memory"
        "P2P: staging of rank 0 for rank 1: the reader's driver has no memory type for it (memoryTypeBits 0)")
layer_run(dma-buf-no-export dma-buf,dma-buf-no-export SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*staging 16 MiB of device memory (p2p dma_buf) of ranks .0. and host memory"
        "P2P: staging of rank 1 for rank 0: vkGetMemoryFdKHR on rank 1: VkResult -2")

# ---- memory that is not coherent, and devices that are not a CPU ------------------------------------------------------------
layer_run(non-coherent radv+non-coherent,radv+non-coherent+offset-alignment-256
    LINES "AllReduce active" "^vkcomm_layer: the plugin is held to the device's limits")
layer_run(non-coherent-p2p radv+non-coherent,radv+non-coherent,radv+non-coherent SET GGML_VK_COMM_P2P=1
    LINES "AllReduce active.*device memory (p2p dma_buf)")
layer_run(non-coherent-relay radv+non-coherent+discrete,radv+non-coherent+discrete CASES --case sizes
    LINES "no relay: relay slot of rank 0: .* imports host memory without coherence" "AllReduce active")
layer_run(relay-asked nvidia,nvidia CASES --case sizes SET GGML_VK_COMM_ALGO=relay:0-64K,pipeline:64K-max
    LINES "no relay: .*software device" "AllReduce active.*singleshot:0-64K,pipeline:64K-max .set by environment")
# The kernels of lavapipe cannot wait: the relay's self-test shows it.
layer_run(discrete nvidia+discrete,nvidia+discrete LINES "no relay: self-test: " "AllReduce active.*native ordering")

# ---- what succeeds and does not work: the self-test finds it -------------------------------------------------------------------
layer_declined(wrong-host-import-rank0 wrong-host-import,lavapipe "no communicator: proxy ordering: self-test: rank . has")
layer_declined(wrong-host-import-rank1 nvidia,nvidia+wrong-host-import "native ordering: self-test: rank . has")
foreach(n 2 3)
    layer_run(wrong-fd-import-n${n} ${RADV_${n}}+wrong-fd-import SET GGML_VK_COMM_P2P=1
        LINES "P2P: not used, self-test: rank . has" "AllReduce active.*staging 16 MiB of host memory")
endforeach()
layer_run(wrong-timeline-import nvidia,nvidia+wrong-timeline-import CASES --case sizes
    LINES "native ordering: self-test: rank 1 did not finish" "AllReduce active.*proxy ordering")
# Stale data of an earlier trial must not hide it: hence the first element.
layer_run(no-copies radv,radv+no-copies CASES --case sizes --case large SET GGML_VK_COMM_ALGO=pipeline:0-max
    LINES "copy queues are not used, self-test: rank 0 has .* for element 0 of 1" "AllReduce active.*pipeline:0-max")
layer_declined(no-copy-signals radv,radv+no-copy-signals "no communicator: copy queues: self-test: rank 0 did not finish")
if(VKCOMM_FULL_TESTS) # takes the 35 s after which nothing more is expected
    layer_declined(stalls radv,stalls "no communicator: calibration: the ranks did not come to rest" VKCOMM_LAYER_STALL=48)
endif()

# ---- the whole of it -------------------------------------------------------------------------------------------------------
set(LAYER_ON ${CMAKE_SOURCE_DIR}/tests/layer/on ${LAYER})
# layer_host(NAME ORDERING DEVICES): all logits of llama.cpp bit-equal without and with the plugin.
function(layer_host name ordering devices)
    string(REGEX MATCHALL "," commas "${devices}")
    list(LENGTH commas ranks)
    math(EXPR ranks "${ranks} + 1")
    vkcomm_test(layer-host-${name} host ${USES} "${ordering} ordering" ${LAYER_ON} ${devices}
        ${BUILD}/host-compare lavapipe ${ranks} tiny ${EXACT} ${ARGN})
endfunction()
if(TARGET llama-run AND TARGET make-gguf) # not with 3 ranks, of which llama.cpp itself dies on lavapipe
    layer_host(radv proxy ${RADV_2})
    layer_host(two-vendors proxy nvidia,radv)
    layer_host(sharing native ${SHARING_2} GGML_VK_COMM_P2P=1 GGML_VK_COMM_ALGO=pipeline:0-max)
    if(VKCOMM_FULL_TESTS)
        layer_host(nvidia native ${NVIDIA_2})
        layer_host(sharing-n4 native ${SHARING_2},${SHARING_2} GGML_VK_COMM_P2P=1)
        layer_host(non-coherent native radv+timeline-fd+non-coherent,radv+timeline-fd+non-coherent)
    endif()
endif()
vkcomm_test(layer-bench cli ${LAYER_ON} ${SHARING_3} ${VKCOMM} bench --devices 0,1,2 -b 4K -e 1M -f 16 -n 2 -w 1 -c 2
    --algo singleshot,pipeline,twoshot,ring --wire f32,bf16 --p2p)
# GPUs that pass for such, whose relay fails its self-test.
vkcomm_test(layer-bench-discrete cli ${LAYER_ON} nvidia+discrete,nvidia+discrete ${VKCOMM} bench -g 2 -b 4K -e 64K -f 16 -n 2 -w 1 -c 2)
vkcomm_test(layer-doctor cli ${LAYER_ON} nvidia+discrete,radv+discrete ${VKCOMM} doctor)
if(VKCOMM_FULL_TESTS)
    vkcomm_test(layer-go-test go ${LAYER_ON} ${SHARING_2}+jitter ${GO} test -count=1 ./vkimpl/...)
endif()
