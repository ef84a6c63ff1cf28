// A routing trace: which experts every token chose in every layer, and with what weight, as a file.
//
// Little-endian. Header: "DSMOETR1", then varints V, E, K, the number of MoE layers, and each layer's index as the
// distance from the one before. Records follow, each a tag and varints:
//   'D' length name      the next domain, numbered from 0 in order of appearance
//   'S' domain           a sequence begins at position 0
//   'B' tokens bytes …   consecutive tokens of the sequence; `bytes` of payload: the token ids at ceil(log2 V) bits
//                        each, padded to a byte; then per layer the experts of all tokens, best first, at ceil(log2 E)
//                        bits each, padded to a byte, and their weights as bf16: a token's first as a varint of its bits,
//                        each further one as the zigzag distance from the one before (mostly one byte, since weights fall)
//   'E' tokens           the end; what is missing it was cut off
// A varint has 7 bits per byte, lowest first, the high bit set on all but the last.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "study/routing_batch.h"

namespace dsmoe::study {

inline constexpr Index kMaxTraceTokens = 4096;       // of one block: bounds what a reader holds
inline constexpr std::size_t kMaxDomains = 4096;     // of one trace
inline constexpr std::size_t kMaxDomainName = 1024;  // bytes

class TraceWriter {
 public:
  TraceWriter(const std::filesystem::path& path, RoutingShape shape);  // the file appears with finish()

  // Batches come in the order of their sequences. `domains` are the names known so far.
  void add(const RoutingBatch& batch, std::span<const std::string> domains);
  void finish();

  std::int64_t tokens() const { return tokens_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void flush();
  void add_block(const RoutingBatch& batch, Index begin, Index end);

  RoutingShape shape_;
  io::AtomicFile file_;
  std::string out_, payload_;
  std::size_t domains_ = 0;
  std::int64_t tokens_ = 0;
  std::uint64_t bytes_ = 0;
};

class TraceReader {
 public:
  explicit TraceReader(const std::filesystem::path& path);
  static TraceReader from_memory(std::span<const std::byte> bytes, std::string name);

  const RoutingShape& shape() const { return shape_; }
  const std::vector<std::string>& domains() const { return domains_; }  // those met so far
  // The next tokens; false at the end. Weights have been through bf16. `batch` is reused.
  bool next(RoutingBatch& batch);

 private:
  struct Bytes;
  TraceReader() = default;
  void read_header();
  bool read_next(RoutingBatch& batch);
  void read_block(Bytes& in, RoutingBatch& batch);

  std::shared_ptr<const io::MappedFile> file_;
  std::string name_;
  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  RoutingShape shape_;
  std::vector<std::string> domains_;
  bool in_sequence_ = false;
  Index domain_ = 0, position_ = 0;
  std::int64_t tokens_ = 0;
};

}  // namespace dsmoe::study
