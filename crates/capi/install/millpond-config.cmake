# find_package(millpond) gives the targets millpond::millpond (shared) and millpond::millpond_static.
get_filename_component(millpond_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET millpond::millpond)
  add_library(millpond::millpond SHARED IMPORTED)
  set_target_properties(millpond::millpond PROPERTIES
    IMPORTED_LOCATION "${millpond_prefix}/lib/libmillpond.so"
    IMPORTED_SONAME "libmillpond.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${millpond_prefix}/include")
endif()

if(NOT TARGET millpond::millpond_static)
  add_library(millpond::millpond_static STATIC IMPORTED)
  set_target_properties(millpond::millpond_static PROPERTIES
    IMPORTED_LOCATION "${millpond_prefix}/lib/libmillpond.a"
    INTERFACE_LINK_LIBRARIES "gcc_s;pthread;dl;m"
    INTERFACE_INCLUDE_DIRECTORIES "${millpond_prefix}/include")
endif()
