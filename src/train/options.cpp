#include "train/options.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "train/schedule.h"

namespace dsmoe::train {

namespace {

template <class Options, class Visit>
void visit_fields(Options& o, Visit&& visit) {
  visit("data", o.data);
  visit("field", o.field);
  visit("label-by", o.label_by);
  visit("label-field", o.label_field);
  visit("order", o.order);
  visit("holdout", o.holdout);
  visit("strict", o.strict);
  visit("seq-len", o.seq_len);
  visit("seed", o.seed);
  visit("steps", o.steps);
  visit("schedule-steps", o.schedule_steps);
  visit("batch-size", o.batch_size);
  visit("grad-accum", o.grad_accum);
  visit("lr", o.lr);
  visit("lr-schedule", o.lr_schedule);
  visit("warmup-steps", o.warmup_steps);
  visit("weight-decay", o.weight_decay);
  visit("clip", o.clip);
  visit("beta1", o.beta1);
  visit("beta2", o.beta2);
  visit("epsilon", o.epsilon);
  visit("bias-update-speed", o.bias_update_speed);
  visit("dtype", o.dtype);
  visit("recompute", o.recompute);
  visit("freeze", o.freeze);
  visit("lora-rank", o.lora_rank);
  visit("lora-alpha", o.lora_alpha);
  visit("eval-every", o.eval_every);
  visit("eval-sequences", o.eval_sequences);
  visit("save-every", o.save_every);
  visit("keep", o.keep);
}

void at_least(const char* flag, Index value, Index least) {
  require(value >= least && value <= (Index{1} << 40), "--{} is {}; it must be at least {}", flag, value, least);
}

void in_range(const char* flag, double value, double least, double under) {
  require(std::isfinite(value) && value >= least && value < under, "--{} is {}; it must be at least {} and under {}", flag,
          value, least, under);
}

}  // namespace

void TrainOptions::validate() const {
  at_least("seq-len", seq_len, 1);
  at_least("steps", steps, 1);
  at_least("schedule-steps", schedule_steps, 0);
  at_least("batch-size", batch_size, 1);
  at_least("grad-accum", grad_accum, 1);
  at_least("warmup-steps", warmup_steps, 0);
  at_least("lora-rank", lora_rank, 0);
  at_least("eval-every", eval_every, 0);
  at_least("eval-sequences", eval_sequences, 1);
  at_least("save-every", save_every, 0);
  at_least("keep", keep, 1);
  constexpr double kAny = 1e6;
  in_range("lr", lr, 0, kAny);
  in_range("weight-decay", weight_decay, 0, kAny);
  in_range("clip", clip, 0, kAny);
  in_range("beta1", beta1, 0, 1);
  in_range("beta2", beta2, 0, 1);
  in_range("epsilon", epsilon, 0, 1);
  in_range("bias-update-speed", bias_update_speed, 0, kAny);
  in_range("lora-alpha", lora_alpha, 0, kAny);
  in_range("holdout", holdout, 0, 0.51);
  parse_schedule(lr_schedule);
  require(label_by == "folder" || label_by == "file", "--label-by is \"{}\"; choose folder or file", label_by);
  require(order == "shuffle" || order == "sequential", "--order is \"{}\"; choose shuffle or sequential", order);
  require(dtype == "f32" || dtype == "bf16", "--dtype is \"{}\"; choose f32 or bf16", dtype);
}

nlohmann::ordered_json to_json(const TrainOptions& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  visit_fields(options, [&](const char* name, const auto& value) { object[name] = value; });
  return object;
}

TrainOptions options_from_json(const nlohmann::ordered_json& object, const std::string& where) {
  if (!object.is_object()) fail(ErrorCode::kFormat, "{}: the options of the run are no JSON object", where);
  TrainOptions options;
  visit_fields(options, [&](const char* name, auto& value) {
    if (!object.contains(name)) return;
    try {
      object.at(name).get_to(value);
    } catch (const nlohmann::json::exception&) {
      fail(ErrorCode::kFormat, "{}: the option \"{}\" has the wrong type", where, name);
    }
  });
  return options;
}

}  // namespace dsmoe::train
