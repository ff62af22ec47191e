# Run at every build: writes common/build.h if what it says has changed, so that the program always
# names the commit it was built from.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE SPARDA_GIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SPARDA_GIT)
    set(SPARDA_GIT unknown)
endif()
configure_file(${SOURCE_DIR}/common/build.h.in ${OUTPUT})
