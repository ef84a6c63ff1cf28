#include "io/checkpoint.h"

#include <gtest/gtest.h>

#include "io/checkpoint_index.h"
#include "io/json_text.h"
#include "io/safetensors_writer.h"
#include "io_test_support.h"

namespace dsmoe::io {
namespace {

// A file with one f32 [2] tensor per name.
void write_shard(const std::filesystem::path& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const auto& name : names) specs.push_back({name, DType::kF32, {2}});
  SafetensorsWriter writer(path, specs);
  for (const auto& name : names) writer.write(name, Tensor::zeros(DType::kF32, {2}));
  writer.finish();
}

void write_index(const TempFolder& dir, const WeightMap& map) { write_bytes(dir / kIndexFile, format_index(map, 8)); }

void expect_refused(const TempFolder& dir, std::initializer_list<std::string_view> parts) {
  EXPECT_TRUE(throws_error([&] { Checkpoint::open(dir.path()); }, parts, ErrorCode::kFormat));
}

TEST(Checkpoint, OpensFoldersAndFiles) {
  TempFolder dir;
  write_shard(dir / "one.safetensors", {"a", "b"});
  write_shard(dir / "two.safetensors", {"c"});
  write_shard(dir / "unrelated.safetensors", {"a"});
  write_index(dir, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  const auto folder = Checkpoint::open(dir.path());
  EXPECT_EQ(folder.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(folder.files().size(), 2u) << "only files that the index names are opened";
  EXPECT_EQ(folder.total_bytes(), 24u);
  EXPECT_TRUE(folder.contains("c"));
  EXPECT_FALSE(folder.contains("d"));
  EXPECT_EQ(folder.tensor("c").shape(), Shape{2});
  EXPECT_TRUE(throws_error([&] { folder.tensor("d"); }, {dir.path().string(), "'d'"}, ErrorCode::kFormat));

  const auto file = Checkpoint::open(dir / "two.safetensors");
  EXPECT_EQ(file.names(), std::vector<std::string>{"c"});

  write_shard(dir / kSingleFile, {"single"});
  EXPECT_EQ(Checkpoint::open(dir.path()).names(), std::vector<std::string>{"single"}) << "preferred to the index";
}

TEST(Checkpoint, SaysWhatAFolderLacks) {
  TempFolder dir;
  EXPECT_TRUE(throws_error([&] { Checkpoint::open(dir / "none"); }, {"/none", "No such file"}, ErrorCode::kIo));
  EXPECT_TRUE(
      throws_error([&] { Checkpoint::open(dir.path()); }, {dir.path().string(), "no model.safetensors"}, ErrorCode::kIo));
  write_bytes(dir / "pytorch_model.bin", "");
  EXPECT_TRUE(throws_error([&] { Checkpoint::open(dir.path()); }, {"pytorch_model.bin", "convert"}, ErrorCode::kIo));
  std::filesystem::remove(dir / "pytorch_model.bin");
  write_bytes(dir / "model-00001-of-00002.safetensors", "");
  EXPECT_TRUE(throws_error([&] { Checkpoint::open(dir.path()); }, {"model-00001-of-00002", "no index"}, ErrorCode::kIo));
}

TEST(Checkpoint, RefusesAnIndexThatDoesNotFitItsShards) {
  TempFolder dir;
  write_shard(dir / "one.safetensors", {"a", "b"});
  write_shard(dir / "two.safetensors", {"c"});
  const WeightMap good{{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}};
  const auto with = [&](const std::string& name, const std::string& file) {
    WeightMap map = good;
    map[name] = file;
    write_index(dir, map);
  };
  write_index(dir, good);
  EXPECT_NO_THROW(Checkpoint::open(dir.path()));
  with("d", "two.safetensors");
  expect_refused(dir, {kIndexFile, "'d'", "missing in 'two.safetensors'"});
  with("b", "two.safetensors");
  expect_refused(dir, {kIndexFile, "'b'", "in 'one.safetensors'", "expects it in 'two.safetensors'"});
  write_index(dir, {{"a", "one.safetensors"}, {"c", "two.safetensors"}});
  expect_refused(dir, {kIndexFile, "'b'", "'one.safetensors'", "not in the index"});
  write_index(dir, good);
  write_shard(dir / "two.safetensors", {"c", "a"});
  expect_refused(dir, {kIndexFile, "'a'", "in 'two.safetensors'", "expects it in 'one.safetensors'"});
  write_bytes(dir / kIndexFile, "");
  expect_refused(dir, {kIndexFile, "JSON"});
  write_index(dir, good);
  std::filesystem::remove(dir / "two.safetensors");
  EXPECT_TRUE(throws_error([&] { Checkpoint::open(dir.path()); }, {"two.safetensors", "No such file"}, ErrorCode::kIo));
  write_bytes(dir / "two.safetensors", "garbage");
  expect_refused(dir, {"two.safetensors", "too few"});
}

TEST(Checkpoint, RefusesHostileIndexes) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    SCOPED_TRACE(text.substr(0, 100));
    EXPECT_TRUE(throws_error([&] { parse_index(text, "i.json"); }, parts, ErrorCode::kFormat));
  };
  EXPECT_EQ(parse_index(R"({"weight_map":{"a":"x.safetensors"}})", "i"), (WeightMap{{"a", "x.safetensors"}}));
  refused("", {"i.json", "JSON"});
  refused("{", {"i.json", "JSON"});
  refused("[]", {"i.json", "a JSON object, found []"});
  refused("{}", {"i.json", "weight_map"});
  refused(R"({"weight_map":[]})", {"i.json", "weight_map"});
  refused(R"({"weight_map":{}})", {"i.json", "empty"});
  refused(R"({"weight_map":{"a":1}})", {"i.json", "'a'", "found 1"});
  refused(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", {"i.json", "'a'", "twice"});
  refused(R"({"weight_map":{}})" + std::string(1, '\0') + "x", {"zero byte"});
  for (const char* file : {"../x.safetensors", "/x.safetensors", "d/x.safetensors", "..", "", "x.bin", ".safetensors",
                           "..\\\\x.safetensors", "x\\u0000.safetensors", "x\\n.safetensors"}) {
    refused(std::string(R"({"weight_map":{"a":")") + file + R"("}})", {"i.json", "'a'", "same folder"});
  }
  refused(std::string(200, '[') + std::string(200, ']'), {"deeper"});
  refused(R"({"metadata":1e999,"weight_map":{}})", {"i.json", "JSON"});
}

TEST(Checkpoint, ExpectNamesWhatWasExpectedAndFound) {
  TempFolder dir;
  write_bytes(dir / "x.safetensors", raw_safetensors(R"({"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                                                     R"("f":{"dtype":"F64","shape":[],"data_offsets":[8,16]},)"
                                                     R"("r":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[16,17]}})",
                                                     std::string(17, '\0')));
  const auto checkpoint = Checkpoint::open(dir / "x.safetensors");
  const auto kinds = {DType::kF32, DType::kBF16};
  EXPECT_EQ(checkpoint.expect("w", kinds, {2, 1}).shape(), (Shape{2, 1}));
  const auto refused = [&](const char* name, std::initializer_list<DType> dtypes, Shape shape,
                           std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { checkpoint.expect(name, dtypes, shape); }, parts, ErrorCode::kFormat));
  };
  refused("w", {DType::kBF16, DType::kF16}, {2, 1}, {"x.safetensors", "'w'", "BF16 or F16 [2, 1]", "F32 [2, 1]"});
  refused("w", kinds, {1, 2}, {"x.safetensors", "'w'", "F32 or BF16 [1, 2]", "found F32 [2, 1]"});
  refused("w", kinds, {2}, {"x.safetensors", "'w'", "F32 or BF16 [2]", "found F32 [2, 1]"});
  refused("f", kinds, {}, {"x.safetensors", "'f'", "F32 or BF16 []", "found F64 []"});
  refused("r", {DType::kU8}, {1}, {"x.safetensors", "'r'", "U8 [1]", "found U8 [1, 1, 1, 1, 1]"});
  refused("none", kinds, {3}, {"x.safetensors", "'none'", "F32 or BF16 [3]", "no such tensor"});
}

TEST(Checkpoint, MissingAndExtraInOneMessage) {
  TempFolder dir;
  write_shard(dir / kSingleFile, {"a", "b", "x", "y"});
  const auto checkpoint = Checkpoint::open(dir.path());
  const auto message = [&](std::vector<std::string> expected) { return checkpoint.missing_and_extra(expected).message(); };
  EXPECT_EQ(message({"a", "b", "x", "y"}), "");
  EXPECT_TRUE(checkpoint.missing_and_extra(checkpoint.names()).empty());
  EXPECT_EQ(message({"a", "b", "c1", "c2", "c3", "c4", "c5", "c6"}),
            dir.path().string() + ": tensors missing: 6 ('c1', 'c2', 'c3', 'c4', 'c5', ...), and unexpected: 2 ('x', 'y')");
  EXPECT_EQ(message({"a", "b", "x"}), dir.path().string() + ": tensors unexpected: 1 ('y')");
  EXPECT_EQ(checkpoint.missing_and_extra(std::vector<std::string>{"q"}).missing, std::vector<std::string>{"q"});
}

TEST(JsonText, ReadsFilesStrictly) {
  TempFolder dir;
  write_bytes(dir / "a.json", R"({"x": [1, {"y": null}], "z": {"x": 1}})");
  EXPECT_EQ(read_json(dir / "a.json")["x"][0], 1);
  write_bytes(dir / "a.json", R"({"x": {"y": 1, "z": 2, "y": 3}})");
  EXPECT_TRUE(throws_error([&] { read_json(dir / "a.json"); }, {"a.json", "'y'", "twice"}, ErrorCode::kFormat));
  write_bytes(dir / "a.json", "{} {}");
  EXPECT_TRUE(throws_error([&] { read_json(dir / "a.json"); }, {"a.json", "JSON"}, ErrorCode::kFormat));
  write_bytes(dir / "a.json", "\"\xff\"");
  EXPECT_TRUE(throws_error([&] { read_json(dir / "a.json"); }, {"a.json", "JSON"}, ErrorCode::kFormat));
}

}  // namespace
}  // namespace dsmoe::io
