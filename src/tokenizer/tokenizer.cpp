#include "dsmoe/tokenizer.h"

#include "core/fail.h"
#include "tokenizer/tokenizer_impl.h"

namespace dsmoe {

namespace {

// Positions within a piece are 32 bit.
constexpr std::size_t kMaxText = 0x7FFFFFFF;

void put(std::vector<std::int32_t>& out, const std::vector<std::int32_t>& frame, std::optional<std::int32_t> single,
         std::optional<bool> wanted, const char* name) {
  if (!wanted.value_or(true)) return;
  if (wanted && frame.empty()) {
    require(single.has_value(), "encode: add_{0} was asked for, but this tokenizer has no {0} token", name);
    return out.push_back(*single);
  }
  out.insert(out.end(), frame.begin(), frame.end());
}

}  // namespace

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  require(text.size() <= kMaxText, "encode: a text of {} bytes; at most {} at once", text.size(), kMaxText);
  std::string repaired;
  if (utf8::valid_prefix(text) != text.size()) {
    require(options.plain.empty(), "encode: ranges of plain text in a text that is not valid UTF-8");
    text = repaired = utf8::replace_invalid(text);
  }

  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  put(ids, impl_->frame.prefix, impl_->bos, options.add_bos, "bos");
  auto state = impl_->borrow_state();
  RegexScratch& regex = state->regex;
  const char* begin = nullptr;  // of the normalized text, where that begins the whole one
  const auto encode_normalized = [&](const AddedTokens::Segment& segment) {
    if (segment.id >= 0)
      ids.push_back(segment.id);
    else if (impl_->metaspace)
      impl_->encoder->encode(impl_->metaspace->apply(segment.text, segment.text.data() == begin), 0, *state, ids);
    else
      impl_->encoder->encode(segment.text, 0, *state, ids);
  };
  const AddedTokens::Plain plain{!options.parse_special, options.plain};
  impl_->raw_tokens.for_each(text, plain, regex, [&](const AddedTokens::Segment& segment) {
    if (segment.id >= 0) return ids.push_back(segment.id);
    const std::string_view part = segment.text;
    const auto origin = static_cast<std::size_t>(part.data() - text.data());
    begin = origin == 0 ? part.data() : nullptr;
    if (impl_->normalizer.empty())
      return impl_->normalized_tokens.for_each(part, {plain.everywhere, plain.ranges, origin}, regex, encode_normalized);
    const MarkedText made = impl_->normalizer.apply(MarkedText::part_of(std::string(part), plain.ranges, origin), regex);
    begin = origin == 0 ? made.bytes().data() : nullptr;
    impl_->normalized_tokens.for_each(made.bytes(), {plain.everywhere, made.marks()}, regex, encode_normalized);
  });
  impl_->return_state(std::move(state));
  put(ids, impl_->frame.suffix, impl_->eos, options.add_eos, "eos");
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, const DecodeOptions& options) const {
  std::string out;
  for (const std::int32_t id : ids)
    if (!options.skip_special || !is_special(id)) out += bytes(id);
  if (strips_first(options) && out.starts_with(' ')) out.erase(0, 1);
  return utf8::valid_prefix(out) == out.size() ? out : utf8::replace_invalid(out);
}

bool Tokenizer::strips_first(const DecodeOptions& options) const {
  return impl_->vocab.decoder().strip_first && !options.continues;
}

std::string_view Tokenizer::bytes(std::int32_t id) const { return impl_->vocab.bytes(id); }

std::string Tokenizer::piece(std::int32_t id) const {
  const std::string_view all = bytes(id);
  std::string out;
  for (std::size_t at = 0; at < all.size();) {
    const utf8::Sequence s = utf8::sequence_at(all, at);
    if (s.valid)
      out += all.substr(at, s.length);
    else
      for (std::size_t i = 0; i < s.length; ++i) out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(all[at + i]));
    at += s.length;
  }
  return out;
}

std::int32_t Tokenizer::vocab_size() const { return impl_->vocab.size(); }
std::optional<std::int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::optional<std::int32_t> Tokenizer::pad_id() const { return impl_->pad; }
std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const { return impl_->vocab.id_of(token); }
bool Tokenizer::is_special(std::int32_t id) const { return impl_->vocab.is_special(id); }
bool Tokenizer::has_merges(std::span<const std::string> merges) const {
  return impl_->encoder->bpe.has_merges(merges, impl_->vocab);
}
const std::string& Tokenizer::pre_tokenizer() const { return impl_->pre_tokenizer_text; }
const std::string& Tokenizer::chat_template() const { return impl_->chat_template; }
const std::string& Tokenizer::to_json() const { return impl_->json_text; }
const std::string& Tokenizer::config_json() const { return impl_->config_text; }

std::unique_ptr<EncodeState> Tokenizer::Impl::borrow_state() const {
  {
    const std::lock_guard lock(mutex_);
    if (!states_.empty()) {
      auto state = std::move(states_.back());
      states_.pop_back();
      return state;
    }
  }
  return std::make_unique<EncodeState>();
}

void Tokenizer::Impl::return_state(std::unique_ptr<EncodeState> state) const {
  const std::lock_guard lock(mutex_);
  states_.push_back(std::move(state));
}

std::string StreamDecoder::push(std::int32_t id) {
  if (options_.skip_special && tokenizer_.is_special(id)) return {};
  std::string_view bytes = tokenizer_.bytes(id);
  if (!begun_ && !bytes.empty()) {
    begun_ = true;
    if (tokenizer_.strips_first(options_) && bytes.starts_with(' ')) bytes.remove_prefix(1);
  }
  held_ += bytes;
  const std::size_t ready = held_.size() - utf8::cut_tail(held_);
  std::string out = utf8::replace_invalid(std::string_view(held_).substr(0, ready));
  held_.erase(0, ready);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = utf8::replace_invalid(held_);
  held_.clear();
  begun_ = false;
  return out;
}

}  // namespace dsmoe
