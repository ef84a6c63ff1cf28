# Installs libdsmoe, its headers, the program and a CMake package: find_package(dsmoe) then dsmoe::dsmoe.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS dsmoe EXPORT dsmoe-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET dsmoe_cli)
  install(TARGETS dsmoe_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(EXPORT dsmoe-targets NAMESPACE dsmoe:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsmoe)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/dsmoe-config.cmake.in
  ${PROJECT_BINARY_DIR}/dsmoe-config.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsmoe)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/dsmoe-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/dsmoe-config.cmake ${PROJECT_BINARY_DIR}/dsmoe-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/dsmoe)
