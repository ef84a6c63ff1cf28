# A changed kernel must not come out of the compiler cache as it was. The cache compares texts after the preprocessor, which nvcc runs
# for one architecture: what stands under `#if __CUDA_ARCH__ >= 900` is not in that text when older ones are compiled too.
#
#   cmake -DLAUNCHER=... -DNVCC=... -DFOLDER=... -P compile_cache_test.cmake
file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER})
set(ENV{CCACHE_DIR} ${FOLDER}/cache)

# compiled(NUMBER OUT): the hash of an object with this number in its code for the newer of two architectures.
function(compiled number out)
  file(WRITE ${FOLDER}/number.cuh "__device__ inline int number() {\n#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900\n  return ${number};\n#else\n  return 0;\n#endif\n}\n")
  file(WRITE ${FOLDER}/kernel.cu "#include \"number.cuh\"\n__global__ void kernel(int* out) { *out = number(); }\n")
  execute_process(
    COMMAND ${LAUNCHER} ${NVCC} --generate-code=arch=compute_80,code=[sm_80] --generate-code=arch=compute_90a,code=[sm_90a]
            -MD -MT kernel.o -MF kernel.d -c kernel.cu -o kernel.o
    WORKING_DIRECTORY ${FOLDER} COMMAND_ERROR_IS_FATAL ANY)
  file(SHA256 ${FOLDER}/kernel.o hash)
  set(${out} ${hash} PARENT_SCOPE)
endfunction()

compiled(1 one)
compiled(2 two)
compiled(1 again)
file(REMOVE_RECURSE ${FOLDER})
if(one STREQUAL two)
  message(FATAL_ERROR "the object for the number 2 is that for the number 1")
endif()
if(NOT one STREQUAL again)
  message(FATAL_ERROR "the same code gave another object")  # so that the comparison above means something
endif()
