#include <gtest/gtest.h>

#include "serve/served.h"
#include "support/python.h"

namespace dsmoe {
namespace {

TEST(PeerOpenAi, TheRealClientUnderstandsTheServer) {
  test::Served s;
  const int status =
      testing::run_python("serve/check_with_openai.py", "http://127.0.0.1:" + std::to_string(s.server().port()));
  if (status == testing::kNotInstalled)
    GTEST_SKIP() << "the Python packages openai and prometheus_client are not installed";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace dsmoe
