// Comparisons with Python packages: a script of the tests, run by tests/peers/python.sh.
#pragma once

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace dsmoe::testing {

constexpr int kNotInstalled = 77;  // the status of a script whose packages are missing

// The exit status of `script` (a path under tests/). `rest` goes to the shell as it is: arguments, redirections.
inline int run_python(const std::string& script, const std::string& rest) {
  const std::string tests = DSMOE_TEST_DATA;
  const int status = std::system(fmt::format("'{0}/peers/python.sh' '{0}/{1}' {2}", tests, script, rest).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace dsmoe::testing
