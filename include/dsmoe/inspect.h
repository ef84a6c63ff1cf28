// Where a model's tokens go: load, domains, tokens and combinations of its experts, over data of any length.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/kv_type.h"
#include "dsmoe/model.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

struct InspectOptions {
  // Text, .jsonl or .ids files, each a domain named after the file, or "DOMAIN=FILE"; or "builtin".
  std::vector<std::string> data;
  std::string field = "text";  // of .jsonl files
  Index limit = 0;             // tokens of each domain; 0: all
  Index context = 0;           // 0: the model's max_position_embeddings
  Index sample = 2000;         // tokens of sample text in the page
  std::optional<KvType> kv_type;
  int threads = 0;                 // 0: one per physical core
  const Model* against = nullptr;  // compare the routing with this model's on the same tokens
  std::string name, against_name;  // of the models, in the report; "": from their paths

  std::function<void(std::int64_t tokens, double loss)> progress;  // an exception ends the work
};

struct InspectReport {
  std::string json;  // what `dsmoe inspect --json` prints
  std::string csv;   // one line per layer and expert
  std::string html;  // a page that needs nothing else
};

InspectReport inspect(const Model& model, const InspectOptions& options);

}  // namespace dsmoe
