// log.jsonl: one JSON object per step, in the order of the steps.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>

#include "dsmoe/tensor.h"

namespace dsmoe::train {

struct StepRecord;

class StepLog {
 public:
  // Appends after the entries of steps before `first_step`; later entries come from a run that was killed, and are dropped.
  StepLog(const std::filesystem::path& path, Index first_step);
  static bool is_log(const std::filesystem::path& path);  // empty, or begun by this class

  void add(const StepRecord& record);

 private:
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace dsmoe::train
