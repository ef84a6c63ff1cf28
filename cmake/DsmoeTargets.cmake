# Flags shared by every target, and the function that makes one library per folder of src/.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)

find_program(DSMOE_CCACHE ccache)
if(DSMOE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What ccache must overlook to store objects that are compiled with a precompiled header; and the folder whose paths it takes
  # as relative, so that one build (cuda) has from another (release) what they have in common.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${DSMOE_CCACHE})
  # Depend mode: see tests/cuda/compile_cache_test.cmake for what the preprocessor's text does not show.
  set(CMAKE_CUDA_COMPILER_LAUNCHER env CCACHE_DEPEND=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${DSMOE_CCACHE})
endif()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)

add_library(dsmoe_flags INTERFACE)
target_compile_features(dsmoe_flags INTERFACE cxx_std_20)
# No contraction of a*b+c behind our back: a fused multiply-add is written where it is meant, so that
# every build of one source gives the same bits.
target_compile_options(dsmoe_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-missing-field-initializers -ffp-contract=off>)
if(DSMOE_WERROR)
  target_compile_options(dsmoe_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(DSMOE_SANITIZE)
  target_compile_options(dsmoe_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${DSMOE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_compile_definitions(dsmoe_flags INTERFACE DSMOE_SANITIZED)  # GCC and Clang have no name for it in common
  target_link_options(dsmoe_flags INTERFACE -fsanitize=${DSMOE_SANITIZE})
  find_program(DSMOE_LLD ld.lld)
  if(DSMOE_LLD)  # instrumented programs are large
    target_link_options(dsmoe_flags INTERFACE -fuse-ld=lld)
  endif()
endif()

# dsmoe_quick_compile(TARGET [LEVEL]): for code that nobody waits for when it runs, the commands (-O1) and the tests (-O0).
# Compiling it takes half the time or less; what it calls in the library is optimised all the same. With sanitizers always -O0.
function(dsmoe_quick_compile target)
  set(level ${ARGV1})
  if(NOT level)
    set(level -O1)
  endif()
  if(DSMOE_SANITIZE)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O0>)
  else()
    target_compile_options(${target} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:${level}>)
  endif()
endfunction()

# dsmoe_alone(a.cpp ...): files that CMAKE_UNITY_BUILD, with which the presets compile a folder's files sixteen at a time, leaves
# to themselves: they have names in common with others of their folder.
function(dsmoe_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# dsmoe_folder(NAME [QUICK] SOURCES a.cpp ... DEPENDS core ... PRIVATE_LIBS fmt::fmt ...)
# The library of src/NAME. It links only the folders that docs/design/layers.md lets it depend on, and each folder's
# tests link that folder alone, so a call in the wrong direction does not link. QUICK: with sanitizers it takes longer to
# compile than to run, and is not optimised there.
function(dsmoe_folder name)
  cmake_parse_arguments(arg "QUICK" "" "SOURCES;DEPENDS;PRIVATE_LIBS" ${ARGN})
  add_library(dsmoe_${name} STATIC ${arg_SOURCES})
  if(arg_QUICK AND DSMOE_SANITIZE)
    dsmoe_quick_compile(dsmoe_${name})
  endif()
  target_include_directories(dsmoe_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(dsmoe_${name} PUBLIC dsmoe_flags PRIVATE ${arg_PRIVATE_LIBS})
  foreach(dep ${arg_DEPENDS})
    target_link_libraries(dsmoe_${name} PUBLIC dsmoe_${dep})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY DSMOE_FOLDERS ${name})
  set_property(GLOBAL APPEND PROPERTY DSMOE_PRIVATE_LIBS ${arg_PRIVATE_LIBS})
endfunction()
