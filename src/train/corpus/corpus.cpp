#include "train/corpus/corpus.h"

#include <iterator>
#include <vector>

#include "train/corpus/domains.h"

namespace dsmoe::train {

namespace {

using corpus::Draw;

struct Domain {
  const char* name;
  std::string (*write)(Draw&);
};
constexpr Domain kDomains[] = {{"stories", corpus::write_story},      {"code", corpus::write_code},
                               {"json", corpus::write_json},          {"arithmetic", corpus::write_arithmetic},
                               {"dialogues", corpus::write_dialogue}, {"tables", corpus::write_table},
                               {"german", corpus::write_german}};
constexpr std::uint64_t kCount = std::size(kDomains);

// Apart from the streams that draw weights from the same seed.
constexpr std::uint64_t kTextSeed = 0xC0B9'05D0'C5A1'7E57u, kOrderSeed = 0x0BDE'5EED'D0CA'1105u;

}  // namespace

std::span<const std::string> corpus_domains() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Domain& domain : kDomains) list.emplace_back(domain.name);
    return list;
  }();
  return names;
}

Document corpus_document(std::uint64_t seed, std::uint64_t number) {
  // Each round of domains starts at a random one, so that their order cannot be learned.
  const std::uint64_t turn = Philox(seed ^ kOrderSeed, number / kCount).below(0, kCount);
  const auto domain = static_cast<std::uint16_t>((number % kCount + turn) % kCount);
  Draw draw(seed ^ kTextSeed, number);
  return {kDomains[domain].write(draw), domain};
}

}  // namespace dsmoe::train
