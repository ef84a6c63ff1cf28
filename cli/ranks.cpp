#include "cli/ranks.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "cli/output.h"
#include "cli/progress.h"
#include "core/threads.h"
#include "parallel/same.h"
#include "parallel/world.h"

namespace dsmoe::cli {

namespace {
constexpr int kLostRank = 1;
}

bool join_ranks() {
  const std::shared_ptr<parallel::Comm> world = parallel::world();
  if (world->alone()) return false;
  parallel::on_lost_rank([](const std::string& line) {
    print_error(line);
    parallel::abort_world(kLostRank);
  });
  if (world->rank() > 0) {
    be_quiet();
    ProgressOutput::silence();
  }
  return true;
}

bool join_ranks_with_same_arguments(int& threads) {
  if (!join_ranks()) return false;
  std::ifstream file("/proc/self/cmdline");
  std::string arguments;
  std::getline(file, arguments, '\0');  // the program
  arguments.clear();
  for (std::string word; std::getline(file, word, '\0');) arguments += " " + word;
  parallel::require_same(*parallel::world(), {{"the arguments", arguments}});
  if (threads == 0) threads = parallel::threads_per_rank(ThreadPool::default_size());
  return true;
}

bool is_first_rank() { return parallel::world_rank() == 0; }

bool any_rank(bool mine) {
  if (!parallel::has_world()) return mine;
  std::int64_t sum = mine ? 1 : 0;
  parallel::world()->all_reduce(std::span(&sum, 1));
  return sum > 0;
}

std::string text_of_first_rank(const std::function<std::string()>& read) {
  if (!parallel::has_world()) return read();
  const std::shared_ptr<parallel::Comm> world = parallel::world();
  return world->broadcast(world->rank() == 0 ? read() : "", 0);
}

void leave_ranks(int status) {
  if (status != 0) parallel::abort_world(status);
  parallel::leave_world();
}

void end_ranks(const std::string& message, int status) {
  if (!parallel::has_world()) return;
  const int rank = parallel::world_rank();
  // What all ranks find out at once is said by the first of them, which ends the others.
  if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  print_error(fmt::format("rank {}: {}", rank, message));
  parallel::abort_world(status);
}

}  // namespace dsmoe::cli
