#include "formats/config_spellings.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe {

namespace {

using Json = json_read::OrderedJson;

constexpr std::string_view kOfOtherFamilies[] = {"use_qk_norm",
                                                 "partial_rotary_factor",
                                                 "rotary_dim",
                                                 "shared_expert_intermediate_size",
                                                 "num_nextn_predict_layers",
                                                 "kv_lora_rank",
                                                 "q_lora_rank",
                                                 "qk_nope_head_dim",
                                                 "qk_rope_head_dim",
                                                 "v_head_dim",
                                                 "rope_interleave"};

// Of a list with the same number for every layer that number.
const Json& said_once(const Family& family, const Json& v) {
  const bool list = !family.per_layer.empty() && v.is_array() && !v.empty();
  return list ? v.front() : v;
}

}  // namespace

bool is_of_other_families(std::string_view field) {
  return std::find(std::begin(kOfOtherFamilies), std::end(kOfOtherFamilies), field) != std::end(kOfOtherFamilies);
}

bool knows(const Family& family, std::string_view field) {
  const auto listed = [&](const FieldName& n) { return n.field == field; };
  return !is_of_other_families(field) || std::any_of(family.fields.begin(), family.fields.end(), listed);
}

std::vector<std::string> spellings(const Family& family, std::string_view field) {
  std::vector<std::string> all;
  for (const FieldName& n : family.fields)
    if (n.field == field) all.emplace_back(n.spelling);
  // Newer files call torch_dtype just dtype; whichever stands in the file is read and written back.
  if (field == "torch_dtype") return {"torch_dtype", "dtype"};
  const bool derived = field == "n_shared_experts" && knows(family, "shared_expert_intermediate_size");  // says their width
  if (!derived && !is_of_other_families(field) && std::find(all.begin(), all.end(), field) == all.end())
    all.emplace_back(field);
  return all;
}

std::string name_in(const Json& object, const Family& family, std::string_view field) {
  const std::vector<std::string> names = spellings(family, field);
  if (field == "torch_dtype" && object.contains("dtype")) return "dtype";
  for (const std::string& name : names)
    if (object.contains(name)) return name;
  return names.empty() ? "" : names.front();
}

void check_spellings(const Json& object, const Family& family) {
  for (const FieldName& listed : family.fields) {
    const Json* first = nullptr;
    std::string said;
    for (const std::string& name : spellings(family, listed.field)) {
      const auto found = object.find(name);
      if (found == object.end()) continue;
      if (first && said_once(family, *first) != said_once(family, *found))
        fail(ErrorCode::kFormat, "{} is {}, but {} is {}; they mean the same, remove one", said, json_read::shown(*first),
             name, json_read::shown(*found));
      if (!first) first = &*found, said = name;
    }
  }
}

}  // namespace dsmoe
