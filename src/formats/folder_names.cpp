#include "formats/folder_names.h"

#include "core/fail.h"
#include "core/log.h"
#include "core/printable.h"
#include "formats/fp8.h"
#include "model/plan.h"
#include "model/row_order.h"

namespace dsmoe {

FolderNames::FolderNames(const io::Checkpoint& checkpoint, const ModelConfig& config)
    : checkpoint_(checkpoint), config_(config), family_(family_of(config.model_type)) {}

FolderNames::Place FolderNames::place_of(const Parameter& p) const {
  if (checkpoint_.contains(p.name)) return {p.name};
  for (std::string& name : family_.spellings(p.role, p.layer, p.expert))
    if (checkpoint_.contains(name)) return {std::move(name)};
  const auto* const place = std::get_if<ExpertPlace>(&p.place);
  if (!place || p.expert < 0) return {p.name};
  const char* const stack = place->part == ExpertPart::kDown ? "experts.down.stack" : "experts.gate_up.stack";
  for (std::string& name : family_.spellings(stack, p.layer))
    if (checkpoint_.contains(name)) return {std::move(name), place->experts};
  return {p.name};
}

Tensor FolderNames::read(const Parameter& p) const {
  static constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  const Place at = place_of(p);
  const RowOrder order = row_order(p, family_.rotary_pairs);
  if (p.role == family_.one_row && checkpoint_.contains(at.name) && checkpoint_.info(at.name).dims.size() == 2)
    return checkpoint_.expect(at.name, kDTypes, {1, p.shape[0]}).reshape(p.shape);
  if (is_fp8(checkpoint_, at.name)) return to_memory_order(read_fp8(checkpoint_, at.name, p.shape), order);
  if (at.experts == 0) return to_memory_order(checkpoint_.expect(at.name, kDTypes, p.shape), order);
  const ExpertPart part = std::get<ExpertPlace>(p.place).part;
  const Index rows = p.shape[0], columns = p.shape[1], tall = part == ExpertPart::kDown ? rows : 2 * rows;
  const Tensor stack = checkpoint_.expect(at.name, kDTypes, {at.experts, tall, columns});
  const Tensor expert = stack.rows(p.expert, p.expert + 1).reshape({tall, columns});
  return part == ExpertPart::kUp ? expert.rows(rows, 2 * rows) : part == ExpertPart::kGate ? expert.rows(0, rows) : expert;
}

std::optional<DType> FolderNames::dtype_of(const Parameter& p) const {
  const std::string name = name_of(p);
  return is_fp8(checkpoint_, name) ? DType::kBF16 : io::dtype_from_file(checkpoint_.info(name).dtype);
}

bool FolderNames::is_stored_as(DType dtype) const {
  for (const std::string& name : checkpoint_.names())
    if (is_fp8(checkpoint_, name)) return false;
  return checkpoint_.info(name_of(parameter_list(config_).front())).dtype == io::dtype_in_file(dtype);
}

bool FolderNames::last_of_its_tensor(const Parameter& p) const {
  const Place at = place_of(p);
  return at.experts == 0 || (p.expert == at.experts - 1 && std::get<ExpertPlace>(p.place).part != ExpertPart::kGate);
}

bool FolderNames::is_skipped(const std::string& name) const {
  const Index behind = std::max<Index>(1, config_.num_nextn_predict_layers);
  for (const std::string_view prefix : family_.skipped)
    for (Index i = 0; i < std::min<Index>(behind, 64); ++i)
      if (name.starts_with(fmt::format(fmt::runtime(prefix), fmt::arg("layers", config_.num_hidden_layers + i))))
        return true;
  return false;
}

void FolderNames::check() const {
  // So many are missing that no list of them helps; and the list would be longer than what the files hold.
  constexpr Index kListed = 10'000;
  const auto have = static_cast<Index>(checkpoint_.names().size());
  bool stacks = false;  // a tensor may hold all experts of a layer
  for (const std::string& name : family_.spellings("experts.gate_up.stack", config_.first_k_dense_replace))
    stacks = stacks || checkpoint_.contains(name);
  const Index stacked = stacks ? std::max<Index>(1, config_.routed_experts()) : 1;
  if (const Index need = count_parameters(config_).tensors; need / stacked > 2 * have + kListed)
    fail(ErrorCode::kFormat, "{}: {} tensors, but the model of its config.json has {}", checkpoint_.path(), have, need);
  std::vector<std::string> names;
  for (const Parameter& p : parameter_list(config_)) {
    Place at = place_of(p);
    if (is_fp8(checkpoint_, at.name)) names.push_back(fp8_scale_name(at.name));
    if (at.experts == 0 || last_of_its_tensor(p)) names.push_back(std::move(at.name));
  }
  // A tied head is the embedding; some files store it all the same, under the name that the family has for it, if any.
  if (config_.tie_word_embeddings)
    for (const std::string& head : family_.spellings("head.weight"))
      if (checkpoint_.contains(head)) names.push_back(head);
  std::string passed;
  for (const std::string& name : checkpoint_.names()) {
    if (!is_skipped(name)) continue;
    if (passed.empty()) passed = name;
    names.push_back(name);
  }
  const io::NameDifference difference = checkpoint_.missing_and_extra(names);
  if (!difference.empty()) throw Error(ErrorCode::kFormat, difference.message());
  if (!passed.empty())
    note("{}: layers that predict further tokens are not read: {} and what follows", checkpoint_.path(), in_quotes(passed));
}

}  // namespace dsmoe
