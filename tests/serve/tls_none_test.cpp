#include <gtest/gtest.h>

#include "serve/served.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

TEST(Https, ABuildWithoutItSaysSo) {
  EXPECT_TRUE(testing::throws_error([] { test::Served s({.ssl_cert_file = "a", .ssl_key_file = "b"}); }, {"DSMOE_TLS"}));
}

}  // namespace
}  // namespace dsmoe
