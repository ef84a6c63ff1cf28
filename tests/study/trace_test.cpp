#include "study/trace.h"

#include <gtest/gtest.h>

#include "study/random_routing.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::throws_error;
using namespace std::string_literals;

// The bytes of a trace of these batches.
std::string written(const RoutingShape& shape, const std::vector<RoutingBatch>& batches,
                    const std::vector<std::string>& domains = {"prose", "code"}) {
  const testing::TempFolder folder;
  const std::filesystem::path path = folder / "trace";
  TraceWriter writer(path, shape);
  for (const RoutingBatch& b : batches) writer.add(b, domains);
  writer.finish();
  std::string bytes = testing::read_bytes(path);
  EXPECT_EQ(bytes.size(), writer.bytes());
  return bytes;
}

TraceReader reader(const std::string& bytes) { return TraceReader::from_memory(std::as_bytes(std::span(bytes)), "x"); }

void read_all(const std::string& bytes) {
  TraceReader r = reader(bytes);
  for (RoutingBatch b; r.next(b);) {
  }
}

TEST(Trace, GivesBackWhatWasWritten) {
  for (const RoutingShape& shape : {small_shape(), small_shape(1, 1, 1), small_shape(102400, 64, 6),
                                    RoutingShape{7, 300, 20, {0}}, small_shape(65537, 257, 2)}) {
    const std::vector<RoutingBatch> batches = random_batches(shape, 6, 3);
    const std::string bytes = written(shape, batches);
    TraceReader r = reader(bytes);
    EXPECT_EQ(r.shape(), shape);
    RoutingBatch got;
    for (const RoutingBatch& want : batches) {
      ASSERT_TRUE(r.next(got));
      EXPECT_EQ(got.domain, want.domain);
      EXPECT_EQ(got.position, want.position);
      EXPECT_EQ(got.tokens, want.tokens);
      for (std::size_t l = 0; l < want.layers.size(); ++l) {
        const auto a = std::as_const(got.layers[l].experts).span<std::int32_t>(),
                   b = want.layers[l].experts.span<std::int32_t>();
        EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
        for (Index i = 0; i < want.layers[l].weights.numel(); ++i) {
          const float w = want.layers[l].weights.data<float>()[i];
          EXPECT_EQ(std::as_const(got.layers[l].weights).data<float>()[i], static_cast<float>(BFloat16(w)));
        }
      }
    }
    EXPECT_FALSE(r.next(got));
    EXPECT_EQ(r.domains(), (std::vector<std::string>{"prose", "code"}));
  }
}

TEST(Trace, IsCompactAndLongBatchesAreCut) {
  const RoutingShape shape{102400, 64, 6, {1, 2}};
  test::Draw draw(1);
  const std::string bytes = written(shape, {random_batch(shape, 3 * kMaxTraceTokens + 7, 0, 0, draw)});
  const double per_token = static_cast<double>(bytes.size()) / (3.0 * kMaxTraceTokens + 7);
  EXPECT_LT(per_token, 3 + 2 * (4.5 + 6 * 1.5)) << "ids and weights as they are in memory take 2 * 6 * 8 + 4 bytes";
  TraceReader r = reader(bytes);
  Index tokens = 0;
  for (RoutingBatch b; r.next(b);) {
    EXPECT_EQ(b.position, tokens);
    tokens += b.size();
  }
  EXPECT_EQ(tokens, 3 * kMaxTraceTokens + 7);
}

TEST(Trace, NothingAppearsBeforeItIsFinished) {
  const testing::TempFolder folder;
  {
    TraceWriter writer(folder / "trace", small_shape());
    for (const RoutingBatch& b : random_batches(small_shape(), 2, 1)) writer.add(b, std::vector<std::string>{"a", "b"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Trace, HostileBytesAreRefused) {
  const std::string good = written(small_shape(), random_batches(small_shape(), 3, 2));
  EXPECT_NO_THROW(read_all(good));
  EXPECT_TRUE(throws_error([&] { reader("DSMOETR2....."); }, {"not a routing trace"}));
  EXPECT_TRUE(throws_error([&] { reader(""); }, {"not a routing trace"}));
  EXPECT_TRUE(throws_error([&] { read_all(good.substr(0, good.size() - 1)); }, {"whole routing trace"}));
  EXPECT_TRUE(throws_error([&] { read_all(good + "x"); }, {"data after the end"}));
  EXPECT_TRUE(throws_error([&] { reader("DSMOETR1\x00\x08\x02\x01\x01"s); }, {"vocabulary", "0"}));
  EXPECT_TRUE(throws_error([&] { reader("DSMOETR1\x32\x08\x09\x01\x01"s); }, {"experts per token", "9"}));
  EXPECT_TRUE(throws_error([&] { reader("DSMOETR1\x32\x08\x02\x02\x01\x00"s); }, {"out of order"}));
  const std::string head = "DSMOETR1\x32\x06\x01\x01\x01"s;  // V 50, E 6, K 1, layer 1
  EXPECT_TRUE(throws_error([&] { read_all(head + "B\x01\x03..."); }, {"tokens before any sequence"}));
  EXPECT_TRUE(throws_error([&] { read_all(head + "S\x00"s); }, {"before any domain"}));
  const std::string open = head + "D\x01" + "aS\x00"s;
  EXPECT_NO_THROW(read_all(open + "B\x01\x03\x05\x02\x40" + "E\x01"));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\x01\x03\x32\x02\x40" + "E\x01"); }, {"token 50 is not below 50"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\x01\x03\x05\x06\x40" + "E\x01"); }, {"expert 6 is not below 6"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\x01\x03\x05\x02\x40" + "E\x02"); }, {"as many tokens"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\x01\x04\x05\x02\x40\x00"s + "E\x01"); }, {"left over"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\x01\x05\x05\x02\x80\xff\x01" + "E\x01"); }, {"no number"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\xff\x1f\x03\x05\x02\x40" + "E\x01"); }, {"4095 tokens in 3 bytes"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "B\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"); }, {"nine bytes"}));
  EXPECT_TRUE(throws_error([&] { read_all(open + "?"); }, {"beginning of a record"}));
}

TEST(Trace, SizesHaveLimits) {
  const auto varint = [](std::uint64_t v) {
    std::string out;
    for (; v >= 0x80; v >>= 7) out.push_back(static_cast<char>(v | 0x80));
    return out + static_cast<char>(v);
  };
  const auto head = [&](std::uint64_t vocab, std::uint64_t experts, std::uint64_t k, std::uint64_t layers) {
    std::string out = "DSMOETR1" + varint(vocab) + varint(experts) + varint(k) + varint(layers);
    return out + std::string(static_cast<std::size_t>(layers), '\x01');
  };
  EXPECT_NO_THROW(reader(head(1 << 22, 4096, 512, 2)));
  EXPECT_TRUE(throws_error([&] { reader(head((1 << 22) + 1, 4096, 512, 2)); }, {"vocabulary is 4194305", "4194304"}));
  EXPECT_TRUE(throws_error([&] { reader(head(100, 65536, 4, 1)); }, {"routed experts is 65536", "4096"}));
  EXPECT_TRUE(throws_error([&] { reader(head(100, 4096, 513, 1)); }, {"experts per token is 513", "512"}));
  EXPECT_TRUE(throws_error([&] { reader(head(100, 4096, 6, 3)); }, {"pairs of experts", "33554432"}));
  EXPECT_TRUE(throws_error([&] { reader(head(100, 8, 2, 4097)); }, {"MoE layers is 4097", "4096"}));
}

TEST(Trace, AnyChangedByteIsRefusedOrReadsAsATrace) {
  const std::string good = written(small_shape(), random_batches(small_shape(), 1, 4));
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ change);
      try {
        read_all(bad);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kFormat) << e.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace dsmoe::study
