#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe {
namespace {

TEST(NoCuda, ErrorsNameTheOption) {
  EXPECT_FALSE(cuda::available());
  try {
    cuda::forward({}, {}, nullptr);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("DSMOE_CUDA"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace dsmoe
