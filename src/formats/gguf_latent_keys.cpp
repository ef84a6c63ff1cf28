#include "formats/gguf_latent_keys.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

using io::GgufMetadata;
using io::GgufValue;

// Readers multiply the logarithm of the factor with it.
constexpr double kLogMultiplier = 0.1;

constexpr std::string_view kLatentKeys[] = {"attention.q_lora_rank",
                                            "attention.kv_lora_rank",
                                            "attention.key_length_mla",
                                            "attention.value_length_mla",
                                            "rope.scaling.original_context_length",
                                            "rope.scaling.yarn_log_multiplier",
                                            "rope.scaling.yarn_beta_fast",
                                            "rope.scaling.yarn_beta_slow"};

class LatentWriter {
 public:
  LatentWriter(GgufMetadata& m, const std::string& prefix) : m_(m), prefix_(prefix) {}
  void put(const char* name, Index value) const {
    m_.set(prefix_ + name, GgufValue::u32(static_cast<std::uint32_t>(value)));
  }
  void real(const char* name, double value) const { m_.set(prefix_ + name, GgufValue::f32(static_cast<float>(value))); }

 private:
  GgufMetadata& m_;
  const std::string& prefix_;
};

// What went through f32 twice: the tenth of a number.
double tenfold(double value) { return std::stod(fmt::format("{}", static_cast<float>(value / kLogMultiplier))); }

}  // namespace

std::span<const std::string_view> latent_gguf_keys() { return kLatentKeys; }

void put_latent_keys(const ModelConfig& c, const std::string& prefix, GgufMetadata& m) {
  const LatentWriter keys(m, prefix);
  keys.put("attention.head_count_kv", 1);
  keys.put("attention.key_length", *c.kv_lora_rank + c.qk_rope_head_dim);
  keys.put("attention.value_length", *c.kv_lora_rank);
  keys.put("attention.key_length_mla", c.head_dim());
  keys.put("attention.value_length_mla", c.v_head_dim);
  keys.put("attention.kv_lora_rank", *c.kv_lora_rank);
  if (c.q_lora_rank) keys.put("attention.q_lora_rank", *c.q_lora_rank);
}

void read_latent_keys(const io::GgufFile& file, const std::string& prefix, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  const auto key = [&](const char* name) { return prefix + name; };
  // Files from before there were these keys have real heads in the usual ones.
  const bool real_heads = !m.contains(key("attention.key_length_mla"));
  const Index query = m.integer(key(real_heads ? "attention.key_length" : "attention.key_length_mla"));
  c.kv_lora_rank = m.integer(key("attention.kv_lora_rank"));
  c.q_lora_rank.reset();
  // Some files without a second projection of queries say a rank all the same.
  if (!file.contains("blk.0.attn_q.weight")) c.q_lora_rank = m.integer(key("attention.q_lora_rank"));
  c.qk_rope_head_dim = m.integer(key("rope.dimension_count"));
  if (c.qk_rope_head_dim < 0 || c.qk_rope_head_dim > query)
    fail(ErrorCode::kFormat, "{}: {} is {} of heads of {}", m.where(), key("rope.dimension_count"), c.qk_rope_head_dim,
         query);
  c.qk_nope_head_dim = query - c.qk_rope_head_dim;
  c.v_head_dim = m.integer(key(real_heads ? "attention.value_length" : "attention.value_length_mla"));
}

void put_yarn_keys(const RopeScaling& s, const std::string& prefix, GgufMetadata& m) {
  const LatentWriter keys(m, prefix);
  keys.real("rope.scaling.factor", s.factor);
  if (s.original_max_positions) keys.put("rope.scaling.original_context_length", *s.original_max_positions);
  if (s.mscale_all_dim) keys.real("rope.scaling.yarn_log_multiplier", kLogMultiplier * *s.mscale_all_dim);
  keys.real("rope.scaling.yarn_beta_fast", s.beta_fast);
  keys.real("rope.scaling.yarn_beta_slow", s.beta_slow);
}

RopeScaling read_yarn_keys(const GgufMetadata& m, const std::string& prefix, double factor) {
  const auto key = [&](const char* name) { return prefix + name; };
  RopeScaling s{.type = RopeScalingType::kYarn, .factor = factor};
  if (m.contains(key("rope.scaling.original_context_length")))
    s.original_max_positions = m.integer(key("rope.scaling.original_context_length"));
  if (const double multiplier = m.number(key("rope.scaling.yarn_log_multiplier"), 0); multiplier != 0)
    s.mscale = s.mscale_all_dim = tenfold(multiplier);
  s.beta_fast = gguf_decimal(m, key("rope.scaling.yarn_beta_fast"), s.beta_fast);
  s.beta_slow = gguf_decimal(m, key("rope.scaling.yarn_beta_slow"), s.beta_slow);
  return s;
}

const char* why_yarn_is_not_carried(const RopeScaling& s) {
  if (s.mscale.value_or(0) != s.mscale_all_dim.value_or(0)) return "mscale is mscale_all_dim there";
  if (s.attention_factor) return "there is no attention_factor there";
  if (!s.truncate) return "the ramp is truncated there";
  return nullptr;
}

}  // namespace dsmoe
