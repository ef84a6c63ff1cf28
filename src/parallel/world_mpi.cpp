// The ranks of an MPI job. Only messages between pairs of ranks are used, started and then asked about (never waited for
// inside MPI), so a rank that is gone is an Error and not a program that hangs.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "core/device.h"
#include "core/fail.h"
#include "parallel/mpi_state.h"
#include "parallel/same.h"
#include "parallel/world.h"

namespace dsmoe::parallel {

namespace {

constexpr std::size_t kMessage = std::size_t{1} << 30;  // bytes; MPI counts with an int

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorCode::kIo, "MPI could not {}: {}; see whether all ranks are still there", what,
       std::string(text, static_cast<std::size_t>(length)));
}

class MpiPending : public Comm::Pending {
 public:
  explicit MpiPending(MpiState& state) : state_(state) {}
  // Given up, for an error: the caller's memory may be gone soon, so nothing may move bytes into it or out of it any more.
  ~MpiPending() override {
    settle();
    const std::lock_guard lock(state_.mutex);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      state_.broken = true;
      if (i < expected_.size()) MPI_Cancel(&requests_[i]);
    }
  }
  MpiPending(const MpiPending&) = delete;
  MpiPending& operator=(const MpiPending&) = delete;

  // All that is received first.
  void receive(Bytes part, int from, int tag) {
    expected_.push_back(static_cast<int>(part.size()));
    check(MPI_Irecv(part.data(), expected_.back(), MPI_BYTE, from, tag, state_.data,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "receive bytes");
  }
  void send(ConstBytes part, int to, int tag) {
    check(MPI_Isend(part.data(), static_cast<int>(part.size()), MPI_BYTE, to, tag, state_.data,
                    &requests_.emplace_back(MPI_REQUEST_NULL)),
          "send bytes");
  }

  void meanwhile() override {
    // On one machine the cores that compute would copy them: no time is won, and some is lost by taking turns.
    if (state_.size == ranks_on_this_machine()) return;
    if (std::exchange(moved_by_others_, true)) return;
    {
      const std::lock_guard lock(state_.wake_mutex);
      ++state_.on_their_way;
    }
    state_.wake.notify_one();
  }

  void wait() override {
    const auto began = std::chrono::steady_clock::now();
    settle();
    for (int round = 0; !arrived(); ++round) {
      if (state_.lost >= 0) fail(ErrorCode::kIo, "{}", state_.lost_line());
      // Processors may be fewer than ranks: whoever waits gives way at once, and sleeps when it takes longer.
      if (round < 256) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(std::min(20 + round / 64, 200)));
      }
    }
    state_.waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

 private:
  bool arrived() {
    const std::lock_guard lock(state_.mutex);
    int all = 0;
    statuses_.resize(requests_.size());
    const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &all, statuses_.data());
    if (code == MPI_ERR_IN_STATUS) {
      for (const MPI_Status& s : statuses_)
        if (s.MPI_ERROR != MPI_ERR_PENDING) check(s.MPI_ERROR, "move bytes");
    }
    check(code, "move bytes");
    if (all == 0) return false;
    check_lengths();
    expected_.clear(), requests_.clear();
    return true;
  }

  // A rank that sends less than another one waits for is doing something else: what came means nothing. More than that is
  // an error of MPI itself.
  void check_lengths() const {
    for (std::size_t i = 0; i < expected_.size(); ++i) {
      int count = 0;
      check(MPI_Get_count(&statuses_[i], MPI_BYTE, &count), "count bytes");
      if (count != expected_[i])
        fail(ErrorCode::kInternal, "rank {} sent {} bytes where rank {} waited for {}: the ranks do not do the same",
             statuses_[i].MPI_SOURCE, count, state_.rank, expected_[i]);
    }
  }

  void settle() {
    if (std::exchange(moved_by_others_, false)) --state_.on_their_way;
  }

  MpiState& state_;
  bool moved_by_others_ = false;
  std::vector<MPI_Request> requests_;  // what is received, then what is sent
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_;  // bytes of what is received
};

class MpiGroup : public Comm {
 public:
  MpiGroup(std::shared_ptr<MpiState> state, std::vector<int> ranks, int rank, int tag)
      : Comm(rank, static_cast<int>(ranks.size())), state_(std::move(state)), ranks_(std::move(ranks)), tag_(tag) {}

  std::unique_ptr<Pending> start_exchange(std::span<const ConstBytes> to, std::span<const Bytes> from) override {
    const auto me = static_cast<std::size_t>(rank());
    require(to.size() == ranks_.size() && from.size() == ranks_.size() && to[me].size() == from[me].size(),
            "an exchange needs a part for each of {} ranks", ranks_.size());
    count_sent(to);
    auto pending = std::make_unique<MpiPending>(*state_);
    {
      const std::lock_guard lock(state_->mutex);
      if (state_->broken) fail(ErrorCode::kIo, "an earlier error broke the messages between ranks; end all of them");
      for (std::size_t i = 1; i < ranks_.size(); ++i) {  // each rank begins with another one
        const std::size_t r = (me + i) % ranks_.size();
        each_message(from[r], [&](Bytes part) { pending->receive(part, ranks_[r], tag_); });
      }
      for (std::size_t i = 1; i < ranks_.size(); ++i) {
        const std::size_t r = (me + i) % ranks_.size();
        each_message(to[r], [&](ConstBytes part) { pending->send(part, ranks_[r], tag_); });
      }
    }
    if (!to[me].empty() && to[me].data() != from[me].data()) std::memcpy(from[me].data(), to[me].data(), to[me].size());
    return pending;
  }
  std::unique_ptr<Pending> start_exchange(Context& ctx, std::span<const ConstBytes> to,
                                          std::span<const Bytes> from) override {
    if (ctx.device() == Device::kCpu || !state_->gpus) return Comm::start_exchange(ctx, to, from);
    count_sent(to);
    return state_->gpus->start_exchange(ctx, ranks_, rank(), to, from);
  }
  double seconds_waited() const override { return state_->waited; }

 protected:
  std::shared_ptr<Comm> subgroup(const std::vector<int>& ranks) override {
    std::vector<int> members;
    for (const int r : ranks) members.push_back(ranks_[static_cast<std::size_t>(r)]);
    const auto place = std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin();
    return std::make_shared<MpiGroup>(state_, std::move(members), static_cast<int>(place), ++state_->next_tag);
  }

 private:
  template <class Part, class Fn>
  static void each_message(Part bytes, Fn fn) {
    for (std::size_t first = 0; first < bytes.size(); first += kMessage)
      fn(bytes.subspan(first, std::min(kMessage, bytes.size() - first)));
  }

  std::shared_ptr<MpiState> state_;
  std::vector<int> ranks_;  // of the job
  int tag_;
};

struct World {
  std::shared_ptr<MpiState> state;
  std::shared_ptr<Comm> comm;
  std::optional<Heartbeat> heartbeat;
  std::exception_ptr refused;  // why these ranks do not fit together: each call of world() says so
};
World& the_world() {
  static World* const world = new World;  // threads may outlive main() when a program is ended early
  return *world;
}

void bring_together(World& w) {
  auto state = std::make_shared<MpiState>();
  int before = 0, level = 0;
  MPI_Initialized(&before);
  if (before) {
    MPI_Query_thread(&level);
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "start");
    state->initialized_here = true;
  }
  require(level >= MPI_THREAD_SERIALIZED,
          "this MPI lets only one thread call it; initialise it with MPI_THREAD_SERIALIZED");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check(MPI_Comm_dup(MPI_COMM_WORLD, &state->data), "make a group");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &state->beats), "make a group");
  MPI_Comm_rank(state->data, &state->rank);
  MPI_Comm_size(state->data, &state->size);
  w.state = state;
  if (state->size == 1) {
    w.comm = self();
    return;
  }
  std::vector<int> ranks;
  for (int r = 0; r < state->size; ++r) ranks.push_back(r);
  w.comm = std::make_shared<MpiGroup>(state, ranks, state->rank, state->next_tag);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  state->places = w.comm->all_gather(fmt::format("process {} on {}", ::getpid(), host));
  w.heartbeat.emplace(*state);
  require_same(*w.comm, program_facts());
}

}  // namespace

std::shared_ptr<Comm> world() {
  World& w = the_world();
  if (w.refused) std::rethrow_exception(w.refused);
  if (w.comm) return w.comm;
  int before = 0;
  MPI_Initialized(&before);
  if (!before && !started_as_rank()) return self();
  try {
    bring_together(w);
  } catch (...) {
    w.refused = std::current_exception();
    throw;
  }
  return w.comm;
}

bool has_world() { return the_world().comm && !the_world().comm->alone(); }
int world_rank() { return has_world() ? the_world().comm->rank() : 0; }

void on_lost_rank(std::function<void(const std::string&)> handler) {
  World& w = the_world();
  if (!w.state) return;
  const std::lock_guard lock(w.state->handler_mutex);
  w.state->on_lost = std::move(handler);
}

void link_gpus_of_world() {
  World& w = the_world();
  if (!has_world() || w.state->gpus) return;
  const int devices = device::count();
  if (devices > 0) device::use(rank_on_this_machine() % devices);
  w.state->gpus = link_gpus(*w.comm);
}

void leave_world() {
  World& w = the_world();
  if (!w.state) return;
  if (w.comm && !w.comm->alone()) w.comm->barrier();
  w.state->gpus.reset();
  w.heartbeat.reset();
  if (w.state->initialized_here) MPI_Finalize();
  w.comm = self();
  w.state.reset();
}

void abort_world(int status) {
  World& w = the_world();
  if (!w.state || w.state->size == 1) return;
  std::unique_lock lock(w.state->mutex, std::defer_lock);
  // When the other thread does not come out of MPI, there is nothing to wait for.
  static_cast<void>(lock.try_lock_for(std::chrono::seconds(2)));
  MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace dsmoe::parallel
