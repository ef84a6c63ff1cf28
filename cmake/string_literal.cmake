# string_literal(OUT FILE INDENT): the bytes of a file as a C++ string literal followed by ", LENGTH". It is cut into parts,
# since compilers need not take one of any length.
function(string_literal out file indent)
  file(READ ${file} text HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" text "${text}")
  string(LENGTH "${text}" length)
  set(literal "")
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 2048 part)  # 512 bytes
    string(APPEND literal "\n${indent}\"${part}\"")
    math(EXPR at "${at} + 2048")
  endwhile()
  math(EXPR bytes "${length} / 4")
  set(${out} "${literal}, ${bytes}" PARENT_SCOPE)
endfunction()
