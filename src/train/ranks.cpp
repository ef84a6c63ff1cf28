#include "train/ranks.h"

#include <algorithm>
#include <array>

namespace dsmoe::train {

namespace {

// A GPU's threads each add up every so-manieth loss, and their sums are a tree (ops/cuda/cross_entropy.cu).
double sum_on_gpu(std::span<const double> losses) {
  std::array<double, 512> sums{};
  for (std::size_t t = 0; t < losses.size(); ++t) sums[t % sums.size()] += losses[t];
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  return sums[0];
}

double sum_on_cpu(std::span<const double> losses) {
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

}  // namespace

double sum_of_losses(std::span<const double> token_losses, Index vocab, Device device) {
  const auto at_a_time = static_cast<std::size_t>(head_tokens(device, vocab));
  double all = 0;
  for (std::size_t first = 0; first < token_losses.size(); first += at_a_time) {
    const auto some = token_losses.subspan(first, std::min(at_a_time, token_losses.size() - first));
    all += device == Device::kCuda ? sum_on_gpu(some) : sum_on_cpu(some);
  }
  return all;
}

void add_up_targets(parallel::Comm& comm, StepSums& s) {
  std::int64_t counts[] = {s.tokens, s.targets};
  comm.all_reduce(std::span<std::int64_t>(counts));
  s.tokens = counts[0], s.targets = counts[1];
}

void add_up_rest(parallel::Comm& comm, StepSums& s, double waited) {
  std::vector<double> sums = {s.balance.sequence, s.balance.batch, s.balance.device, s.balance.router_z};
  const auto waits = static_cast<std::ptrdiff_t>(sums.size());  // one number per rank, in the same message
  sums.resize(sums.size() + static_cast<std::size_t>(comm.size()));
  sums[static_cast<std::size_t>(waits + comm.rank())] = waited;
  comm.all_reduce(std::span(sums));
  s.balance = {sums[0], sums[1], sums[2], sums[3]};
  s.waited = 0;
  for (auto of_rank = sums.begin() + waits; of_rank != sums.end(); ++of_rank) s.waited += *of_rank;
  s.slowest_rank = std::min_element(sums.begin() + waits, sums.end()) - (sums.begin() + waits);
  std::vector<std::int64_t> load;
  for (const auto& layer : s.load) load.insert(load.end(), layer.begin(), layer.end());
  comm.all_reduce(std::span(load));
  auto from = load.begin();
  for (auto& layer : s.load) {
    const auto next = from + static_cast<std::ptrdiff_t>(layer.size());
    std::copy(from, next, layer.begin());
    from = next;
  }
}

RankBatch batch_of_rank(const parallel::Comm& comm, const Dataset& data, Index first, Index count) {
  const parallel::Comm::Range mine = comm.share(count);
  RankBatch result{data.batch(first + (mine.count() > 0 ? mine.first : 0), std::max<Index>(mine.count(), 1))};
  result.counted = mine.count() * result.batch.length;
  return result;
}

}  // namespace dsmoe::train
