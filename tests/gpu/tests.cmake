# That the measurements work; included by build/tests.cmake. A device without a transfer queue lets its compute queue play one,
# so that all of the code runs.
vkcomm_test(bench-trial vulkan ${RANKS} lavapipe 2 env VKCOMM_BENCH_TRANSFER=alias
    ${GO} test -short -run ^$ -bench . -benchtime 1x ./vkimpl)
if(VKCOMM_FULL_TESTS AND TARGET harness AND TARGET llama-run AND TARGET make-gguf)
    vkcomm_test(gpu-pack host ${CMAKE_SOURCE_DIR}/tests/gpu/pack --no-build --plain --out ${CMAKE_BINARY_DIR}/gpu-trial)
    vkcomm_test(gpu-run host ${CMAKE_BINARY_DIR}/gpu-trial/run --lavapipe 2 --size tiny --rounds 1 --prompt 40 --gen 8
        --bench-time 1x --harness-options "--quick --case sizes" --work ${CMAKE_BINARY_DIR}/gpu-trial/work
        --out ${CMAKE_BINARY_DIR}/gpu-trial/results)
    set_tests_properties(gpu-run PROPERTIES DEPENDS gpu-pack)
endif()
