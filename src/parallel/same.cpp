#include "parallel/same.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/cpu.h"
#include "core/fail.h"

namespace dsmoe::parallel {

namespace {

constexpr char kEnd = '\0';  // names and values are text

std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + kEnd + value + kEnd;
  return text;
}

std::vector<std::string> unpacked(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(kEnd, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// FNV-1a by words of the program's own file.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::uint64_t hash = 0xCBF29CE484222325ull;
  std::vector<char> block(1 << 20);
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    const auto got = static_cast<std::size_t>(file.gcount());
    std::fill(block.begin() + static_cast<std::ptrdiff_t>(got), block.end(), 0);
    for (std::size_t i = 0; i < got; i += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, block.data() + i, 8);
      hash = (hash ^ word) * 0x100000001B3ull;
      hash ^= hash >> 29;
    }
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace

void require_same(Comm& comm, const Facts& facts, const char* advice) {
  if (comm.alone()) return;
  const std::vector<std::string> all = comm.all_gather(packed(facts));
  const std::vector<std::string> first = unpacked(all[0]);
  for (int r = 1; r < comm.size(); ++r) {
    const std::vector<std::string> other = unpacked(all[static_cast<std::size_t>(r)]);
    const auto at = static_cast<std::size_t>(std::mismatch(first.begin(), first.end(), other.begin(), other.end()).first -
                                             first.begin());
    if (at == first.size() && at == other.size()) continue;
    const auto shown = [&](const std::vector<std::string>& list) {
      const std::size_t name = at / 2 * 2;
      return name + 1 < list.size() ? fmt::format("{} {}", list[name], list[name + 1].empty() ? "(none)" : list[name + 1])
                                    : std::string("nothing");
    };
    fail(ErrorCode::kInvalidArgument, "rank {} has {}, but rank 0 has {}; {}", r, shown(other), shown(first), advice);
  }
}

Facts program_facts() {
  const CpuFeatures& cpu = cpu_features();
  const char* const set = cpu.amx           ? "amx"
                          : cpu.avx512_bf16 ? "avx512-bf16"
                          : cpu.avx512      ? "avx512"
                          : cpu.avx2        ? "avx2"
                                            : "generic";
  const char* const wanted = std::getenv("DSMOE_CPU_ISA");  // chooses kernels, see ops/cpu/kernels.h
  return {{"program", program_hash()},
          {"instruction set", fmt::format("{}{}", set, cpu.avx512_vnni ? "-vnni" : "")},
          {"DSMOE_CPU_ISA", wanted ? wanted : ""}};
}

}  // namespace dsmoe::parallel
