#include "train/step_log.h"

#include <cerrno>

#include "core/fail.h"
#include "core/json_read.h"
#include "io/atomic_file.h"
#include "io/line_reader.h"
#include "train/loop.h"

namespace dsmoe::train {

namespace {

// The entries of steps before `first_step`: those from the start up to the first that is not, or is cut off.
std::string entries_before(const std::filesystem::path& path, Index first_step) {
  std::string kept;
  if (first_step == 0 || !std::filesystem::exists(path)) return kept;
  io::LineReader lines(path);
  for (std::string_view line; lines.next(line);) {
    try {
      if (json_read::get<Index>(json_read::parse(line, lines.path()), "step", lines.path()) >= first_step) break;
    } catch (const Error&) {
      break;
    }
    kept.append(line).append("\n");
  }
  return kept;
}

}  // namespace

bool StepLog::is_log(const std::filesystem::path& path) {
  io::LineReader lines(path);
  std::string_view line;
  if (!lines.next(line)) return true;
  try {
    const json_read::Json entry = json_read::parse_object(line, lines.path());
    return entry.contains("step") && entry.contains("loss") && entry.contains("expert_load_max");
  } catch (const Error&) {
    return false;
  }
}

StepLog::StepLog(const std::filesystem::path& path, Index first_step) : path_(path.string()), file_(nullptr, std::fclose) {
  io::write_file_atomically(path, entries_before(path, first_step));
  file_.reset(std::fopen(path_.c_str(), "ab"));
  if (!file_) throw io::io_error(path, "open the file", errno);
}

void StepLog::add(const StepRecord& r) {
  const BalanceLosses& b = r.result.balance;
  nlohmann::ordered_json entry = {{"step", r.step},
                                  {"loss", r.result.loss},
                                  {"aux_loss", b.total()},
                                  {"grad_norm", r.result.grad_norm},
                                  {"lr", r.result.rate},
                                  {"tokens", r.tokens},
                                  {"tokens_per_second", r.tokens_per_second},
                                  {"expert_load_max", r.result.load_max},
                                  {"expert_load_min", r.result.load_min}};
  for (const auto& [name, loss] : {std::pair{"aux_sequence", b.sequence},
                                   {"aux_batch", b.batch},
                                   {"aux_device", b.device},
                                   {"aux_router_z", b.router_z}})
    if (loss != 0) entry[name] = loss;
  if (r.result.slowest_rank >= 0) {
    entry["ranks_waited"] = r.result.waited;
    entry["ranks_waited_share"] = r.waited_share;
    entry["slowest_rank"] = r.result.slowest_rank;
  }
  if (r.evaluation) {
    entry["eval_loss"] = r.evaluation->loss;
    if (!r.evaluation->domains.empty()) {
      nlohmann::ordered_json domains = nlohmann::ordered_json::object();
      for (const auto& [name, loss] : r.evaluation->domains) domains[name] = loss;
      entry["eval_domains"] = domains;
    }
  }
  const std::string line = entry.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), file_.get()) != line.size() || std::fflush(file_.get()) != 0)
    throw io::io_error(path_, "write", errno);
}

}  // namespace dsmoe::train
