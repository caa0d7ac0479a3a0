# The tests of vkcomm, label cli; included by build/tests.cmake. It is a Go module of its own, which ./... of the plugin's does
# not reach.
set(VKCOMM_DIR ${CMAKE_SOURCE_DIR}/cmd/vkcomm)

vkcomm_test(vkcomm-go cli ${VKCOMM_DIR}/check-go)
vkcomm_test(vkcomm-go-test cli ${RANKS} lavapipe 2 ${GO} -C ${VKCOMM_DIR} test ./...)

vkcomm_test(vkcomm-version cli ${VKCOMM} --version)
foreach(n 2 3 4)
    vkcomm_test(vkcomm-bench-n${n} cli ${RANKS} lavapipe 2
        ${VKCOMM} bench --ranks ${n} -b 4K -e 1M -f 16 -n 2 -w 1 -c 2 --wire f32,f16,bf16)
endforeach()
vkcomm_test(vkcomm-bench-p2p cli ${RANKS} lavapipe 2 ${VKCOMM} bench -b 4K -e 1M -f 16 -n 2 -w 1 -c 2 --p2p)
vkcomm_test(vkcomm-bench-gpu cli ${RANKS} gpu 2 ${VKCOMM} bench -g 2 -c 2)
vkcomm_test(vkcomm-doctor-gpu cli ${RANKS} gpu 2 ${VKCOMM} doctor)
if(TARGET llama-run AND TARGET make-gguf)
    vkcomm_test(vkcomm-doctor cli ${RANKS} lavapipe 2 ${VKCOMM} doctor --llama $<TARGET_FILE:llama-run>)
    vkcomm_test(vkcomm-doctor-directory cli ${RANKS} lavapipe 2 ${VKCOMM} doctor --quick --llama ${VKCOMM_LLAMA_LIBDIR})
    vkcomm_test(vkcomm-run cli env VKCOMM_LLAMA_LIBDIR=${VKCOMM_LLAMA_LIBDIR} ${VKCOMM_DIR}/check-run ${VKCOMM})
endif()
