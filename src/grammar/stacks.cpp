#include "grammar/stacks.h"

namespace dsmoe::grammar {

void Stacks::keep_only(std::span<Item> items) {
  constexpr std::uint32_t kUnused = 0xFFFFFFFF;
  std::vector<std::uint32_t> number(size(), kUnused), work;
  const auto use = [&](std::uint32_t node) {
    if (number[node] == kUnused) number[node] = 0, work.push_back(node);
  };
  use(kOutermost);
  for (const Item& item : items) use(item.node);
  while (!work.empty()) {
    const std::uint32_t node = work.back();
    work.pop_back();
    for (const Item& caller : callers(node)) use(caller.node);
  }
  std::uint32_t count = 0;
  for (std::uint32_t& n : number)
    if (n != kUnused) n = count++;
  if (count == size()) return;
  Stacks kept;
  kept.truncate(0);
  std::vector<Item> list;
  for (std::uint32_t node = 0; node < number.size(); ++node) {
    if (number[node] == kUnused) continue;
    list.assign(callers(node).begin(), callers(node).end());
    for (Item& caller : list) caller.node = number[caller.node];
    kept.add(list);
  }
  for (Item& item : items) item.node = number[item.node];
  *this = std::move(kept);
}

}  // namespace dsmoe::grammar
