// What a GGUF file of scores cannot say of a tokenizer is not written.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "dsmoe/error.h"
#include "formats/gguf_tokenizer.h"
#include "io/io_test_support.h"

namespace dsmoe {
namespace {

using io::GgufMetadata;
using testing::throws_error;
using Json = nlohmann::json;

TEST(GgufScores, AbsentMembersOfAMetaspaceMayBeNull) {
  for (const char* member : {"prepend_scheme", "split"}) {
    Json file = Json::parse(Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters").to_json());
    file["normalizer"] = nullptr;
    file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}};
    file["pre_tokenizer"][member] = nullptr;
    const Tokenizer t = Tokenizer::from_json(file.dump());
    GgufMetadata m("x.gguf");
    if (std::string(member) == "split")  // it is true then, which the format does not know
      EXPECT_TRUE(throws_error([&] { put_tokenizer(t, 700, m); }, {"cannot"}, ErrorCode::kUnsupported));
    else
      EXPECT_NO_THROW(put_tokenizer(t, 700, m));
  }
}

TEST(GgufScores, WhatScoresCannotSayIsNotWritten) {
  const auto cannot = [](const std::function<void(Json&)>& change, const char* words) {
    Json file = Json::parse(Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters").to_json());
    change(file);
    const Tokenizer t = Tokenizer::from_json(file.dump());
    GgufMetadata m;
    return throws_error([&] { put_tokenizer(t, 700, m); }, {words}, ErrorCode::kUnsupported);
  };
  EXPECT_TRUE(cannot([](Json& f) { f["model"]["merges"].erase(3); }, "joins only some"));
  EXPECT_TRUE(cannot([](Json& f) { f["model"]["merges"].push_back(f["model"]["merges"][0]); }, "joins only some"));
  EXPECT_TRUE(cannot([](Json& f) { f["normalizer"] = {{"type", "NFC"}}; }, "a mark for every space"));
  EXPECT_TRUE(cannot([](Json& f) { f["pre_tokenizer"] = {{"type", "Digits"}}; }, "a mark for every space"));
}

}  // namespace
}  // namespace dsmoe
