# cmake -DBUILD=... -DAPP=... -DWORK=... -DCOMPILER=... -DGENERATOR=... -DVERSION=... -P check.cmake
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

# The libraries that are only headers must not be asked of the user.
set(configure ${CMAKE_COMMAND} -S ${APP} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${prefix}
  -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON)
run(${configure} -B ${WORK}/build -DWANTED_VERSION=${VERSION})
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/app)

# A negative control: a version that is not this one is refused, so the project did find this package.
execute_process(COMMAND ${configure} -B ${WORK}/refused -DWANTED_VERSION=99.0 RESULT_VARIABLE refused ERROR_VARIABLE why OUTPUT_QUIET)
if(refused EQUAL 0 OR NOT why MATCHES "${VERSION}")
  message(FATAL_ERROR "version 99.0 should not be found; got status ${refused}: ${why}")
endif()

# Nothing of the source or build folder may leak into what is installed.
file(GLOB_RECURSE installed ${prefix}/*.cmake ${prefix}/*.h)
foreach(file ${installed})
  file(READ ${file} text)
  string(FIND "${text}" "${BUILD}" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} names the build folder")
  endif()
endforeach()

if(EXISTS ${prefix}/bin/dsmoe)
  run(${prefix}/bin/dsmoe --version)
endif()
