#include "study/trace.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::study {

namespace {

constexpr std::string_view kMagic = "DSMOETR1";
constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

int bits_for(Index values) { return std::bit_width(static_cast<std::uint64_t>(values - 1)); }
std::size_t packed_bytes(Index count, int bits) {
  return (static_cast<std::size_t>(count) * static_cast<std::size_t>(bits) + 7) / 8;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_packed(std::string& out, const std::int32_t* values, Index count, int bits) {
  std::uint64_t held = 0;
  int have = 0;
  for (Index i = 0; i < count; ++i) {
    held |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(values[i])) << have;
    for (have += bits; have >= 8; have -= 8, held >>= 8) out.push_back(static_cast<char>(held));
  }
  if (have > 0) out.push_back(static_cast<char>(held));
}

std::uint64_t zigzag(std::int64_t v) { return (static_cast<std::uint64_t>(v) << 1) ^ static_cast<std::uint64_t>(v >> 63); }
std::int64_t unzigzag(std::uint64_t v) { return static_cast<std::int64_t>(v >> 1) ^ -static_cast<std::int64_t>(v & 1); }

}  // namespace

TraceWriter::TraceWriter(const std::filesystem::path& path, RoutingShape shape) : shape_(std::move(shape)), file_(path) {
  shape_.validate();
  out_ = kMagic;
  for (const Index n :
       {shape_.vocab_size, shape_.routed_experts, shape_.experts_per_token, static_cast<Index>(shape_.layers.size())})
    put_varint(out_, static_cast<std::uint64_t>(n));
  Index before = 0;
  for (const Index layer : shape_.layers) {
    put_varint(out_, static_cast<std::uint64_t>(layer - before));
    before = layer;
  }
}

void TraceWriter::flush() {
  bytes_ += out_.size();
  file_.write(std::as_bytes(std::span(out_)));
  out_.clear();
}

void TraceWriter::add(const RoutingBatch& batch, std::span<const std::string> domains) {
  require(batch.layers.size() == shape_.layers.size(), "{} layers for a trace of {}", batch.layers.size(),
          shape_.layers.size());
  require(domains.size() <= kMaxDomains, "{} domains; a trace holds at most {}", domains.size(), kMaxDomains);
  for (; domains_ < domains.size(); ++domains_) {
    const std::string name = domains[domains_].substr(0, kMaxDomainName);
    out_.push_back('D');
    put_varint(out_, name.size());
    out_ += name;
  }
  if (batch.position == 0) {
    out_.push_back('S');
    put_varint(out_, static_cast<std::uint64_t>(batch.domain));
  }
  for (Index t = 0; t < batch.size(); t += kMaxTraceTokens)
    add_block(batch, t, std::min(batch.size(), t + kMaxTraceTokens));
  tokens_ += batch.size();
  if (out_.size() >= kFlushBytes) flush();
}

void TraceWriter::add_block(const RoutingBatch& batch, Index begin, Index end) {
  const Index tokens = end - begin, k = shape_.experts_per_token;
  payload_.clear();
  put_packed(payload_, batch.tokens.data() + begin, tokens, bits_for(shape_.vocab_size));
  for (const RoutingBatch::Layer& layer : batch.layers) {
    put_packed(payload_, layer.experts.data<std::int32_t>() + begin * k, tokens * k, bits_for(shape_.routed_experts));
    const float* weight = layer.weights.data<float>() + begin * k;
    for (Index t = 0; t < tokens; ++t) {
      std::int64_t before = 0;
      for (Index j = 0; j < k; ++j) {
        const std::int64_t bits = BFloat16(weight[t * k + j]).bits;
        put_varint(payload_, j == 0 ? static_cast<std::uint64_t>(bits) : zigzag(before - bits));
        before = bits;
      }
    }
  }
  out_.push_back('B');
  put_varint(out_, static_cast<std::uint64_t>(tokens));
  put_varint(out_, payload_.size());
  out_ += payload_;
}

void TraceWriter::finish() {
  out_.push_back('E');
  put_varint(out_, static_cast<std::uint64_t>(tokens_));
  flush();
  file_.commit();
}

// Bytes of a trace, with an end that is never passed.
struct TraceReader::Bytes {
  std::span<const std::byte> data;
  std::size_t at = 0;
  const std::string& name;
  std::size_t offset;  // of `data` in the file, for messages

  [[noreturn]] void bad(std::string_view what) const {
    fail(ErrorCode::kFormat, "{}: byte {}: {}; is this a whole routing trace?", name, offset + at, what);
  }
  std::size_t left() const { return data.size() - at; }
  std::uint8_t byte() {
    if (left() == 0) bad("the data end here");
    return static_cast<std::uint8_t>(data[at++]);
  }
  std::uint64_t varint(std::uint64_t most, const char* what) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const std::uint8_t b = byte();
      value |= static_cast<std::uint64_t>(b & 0x7f) << shift;
      if (b & 0x80) continue;
      if (value > most) bad(fmt::format("{} is {}, expected at most {}", what, value, most));
      return value;
    }
    bad("a number of more than nine bytes");
  }
  std::span<const std::byte> take(std::size_t count) {
    if (count > left()) bad("the data end here");
    at += count;
    return data.subspan(at - count, count);
  }
  void packed(std::int32_t* values, Index count, int bits, Index below, const char* what) {
    const std::span<const std::byte> from = take(packed_bytes(count, bits));
    std::uint64_t held = 0;
    int have = 0;
    std::size_t next = 0;
    for (Index i = 0; i < count; ++i) {
      for (; have < bits; have += 8) held |= static_cast<std::uint64_t>(from[next++]) << have;
      const auto value = static_cast<Index>(held & ((std::uint64_t{1} << bits) - 1));
      if (value >= below) bad(fmt::format("{} {} is not below {}", what, value, below));
      values[i] = static_cast<std::int32_t>(value);
      held >>= bits;
      have -= bits;
    }
  }
};

TraceReader::TraceReader(const std::filesystem::path& path) : file_(io::MappedFile::open(path)), name_(path.string()) {
  file_->advise(io::Advice::kSequential);
  bytes_ = file_->bytes();
  file_->checked([&] { return read_header(), true; });
}

TraceReader TraceReader::from_memory(std::span<const std::byte> bytes, std::string name) {
  TraceReader reader;
  reader.name_ = std::move(name);
  reader.bytes_ = bytes;
  reader.read_header();
  return reader;
}

void TraceReader::read_header() {
  Bytes in{bytes_, 0, name_, 0};
  const std::size_t magic = std::min(kMagic.size(), bytes_.size());
  if (std::string_view(reinterpret_cast<const char*>(in.take(magic).data()), magic) != kMagic)
    fail(ErrorCode::kFormat, "{} is not a routing trace: it does not begin with {}", name_, kMagic);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 32;  // validate() has the real bounds
  shape_.vocab_size = static_cast<Index>(in.varint(kMost, "the vocabulary"));
  shape_.routed_experts = static_cast<Index>(in.varint(kMost, "the number of experts"));
  shape_.experts_per_token = static_cast<Index>(in.varint(kMost, "the number of experts per token"));
  const std::uint64_t layers = in.varint(65536, "the number of layers");
  Index layer = 0;
  for (std::uint64_t i = 0; i < layers; ++i) {
    layer += static_cast<Index>(in.varint(65536, "a layer"));
    shape_.layers.push_back(layer);
  }
  try {
    shape_.validate();
  } catch (const Error& e) {
    fail(ErrorCode::kFormat, "{}: {}", name_, e.what());
  }
  at_ = in.at;
}

bool TraceReader::next(RoutingBatch& batch) {
  return file_ ? file_->checked([&] { return read_next(batch); }) : read_next(batch);
}

bool TraceReader::read_next(RoutingBatch& batch) {
  Bytes in{bytes_, at_, name_, 0};
  for (;;) {
    const std::uint8_t tag = in.byte();
    if (tag == 'D') {
      const auto length = static_cast<std::size_t>(in.varint(kMaxDomainName, "the length of a domain's name"));
      const std::span<const std::byte> text = in.take(length);
      if (domains_.size() >= kMaxDomains) in.bad("too many domains");
      domains_.emplace_back(reinterpret_cast<const char*>(text.data()), length);
    } else if (tag == 'S') {
      if (domains_.empty()) in.bad("a sequence before any domain");
      domain_ = static_cast<Index>(in.varint(domains_.size() - 1, "a domain's number"));
      position_ = 0;
      in_sequence_ = true;
    } else if (tag == 'B') {
      if (!in_sequence_) in.bad("tokens before any sequence");
      read_block(in, batch);
      at_ = in.at;
      return true;
    } else if (tag == 'E') {
      if (in.varint(~std::uint64_t{0} >> 1, "the number of tokens") != static_cast<std::uint64_t>(tokens_))
        in.bad("the trace has not as many tokens as its end says");
      if (in.left() != 0) in.bad("data after the end");
      return false;
    } else {
      in.bad("not the beginning of a record");
    }
  }
}

void TraceReader::read_block(Bytes& in, RoutingBatch& batch) {
  const auto tokens = static_cast<Index>(in.varint(kMaxTraceTokens, "the number of tokens"));
  const auto length = static_cast<std::size_t>(in.varint(in.data.size(), "the length of a block"));
  Bytes body{in.take(length), 0, name_, in.at - length};
  const Index k = shape_.experts_per_token;
  const int token_bits = bits_for(shape_.vocab_size), expert_bits = bits_for(shape_.routed_experts);
  // A weight takes a byte at least: what is allocated below is at most some times what the file holds.
  const std::size_t least =
      packed_bytes(tokens, token_bits) +
      shape_.layers.size() * (packed_bytes(tokens * k, expert_bits) + static_cast<std::size_t>(tokens * k));
  if (tokens == 0 || length < least)
    body.bad(fmt::format("a block of {} tokens in {} bytes, expected {} or more", tokens, length, least));

  batch.domain = domain_;
  batch.position = position_;
  batch.tokens.resize(static_cast<std::size_t>(tokens));
  body.packed(batch.tokens.data(), tokens, token_bits, shape_.vocab_size, "token");
  batch.layers.resize(shape_.layers.size());
  for (RoutingBatch::Layer& layer : batch.layers) {
    layer = {Tensor(DType::kI32, {tokens, k}), Tensor(DType::kF32, {tokens, k})};
    body.packed(layer.experts.data<std::int32_t>(), tokens * k, expert_bits, shape_.routed_experts, "expert");
    float* weight = layer.weights.data<float>();
    for (Index t = 0; t < tokens; ++t) {
      std::int64_t bits = 0;
      for (Index j = 0; j < k; ++j) {
        const std::uint64_t code = body.varint(0x1ffff, "a weight");
        bits = j == 0 ? static_cast<std::int64_t>(code) : bits - unzigzag(code);
        BFloat16 value;
        value.bits = static_cast<std::uint16_t>(bits);
        if (bits < 0 || bits > 0xffff || !std::isfinite(static_cast<float>(value))) body.bad("a weight that is no number");
        weight[t * k + j] = static_cast<float>(value);
      }
    }
  }
  if (body.left() != 0) body.bad("data left over in a block");
  position_ += tokens;
  tokens_ += tokens;
}

}  // namespace dsmoe::study
