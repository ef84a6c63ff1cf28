// A program that has the headers of all tests precompiled (tests/CMakeLists.txt); it needs a file, not what is in it.
