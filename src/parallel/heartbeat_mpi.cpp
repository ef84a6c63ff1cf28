#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "parallel/mpi_state.h"

namespace dsmoe::parallel {

namespace {

constexpr double kEvery = 1, kDefaultPatience = 20;  // seconds
constexpr int kBeatTag = 1;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double patience() {
  const char* const text = std::getenv("DSMOE_RANK_TIMEOUT");
  const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
  return seconds > 0 ? std::max(seconds, 2 * kEvery) : kDefaultPatience;
}

}  // namespace

std::string MpiState::lost_line() const {
  const int r = lost.load();
  return fmt::format(
      "rank {} ({}) does not answer any more; look for what stopped it (memory, machine, network), then resume the run "
      "from "
      "its last checkpoint",
      r, places[static_cast<std::size_t>(r)]);
}

Heartbeat::Heartbeat(MpiState& state) : state_(state), looked_(now()) {
  const double wait = patience();
  if (state.rank == 0) {
    for (int r = 1; r < state.size; ++r) peers_.push_back({r, now(), wait});
  } else {
    // One rank speaks for all when rank 0 is gone.
    peers_.push_back({0, now(), state.rank == 1 ? wait : wait + 5 * kEvery});
  }
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const std::lock_guard lock(state_.wake_mutex);
    stop_ = true;
  }
  state_.wake.notify_all();
  thread_.join();
  const std::lock_guard lock(state_.mutex);
  if (state_.broken) return;
  for (Peer& p : peers_) {
    if (p.receive == MPI_REQUEST_NULL) continue;
    MPI_Cancel(&p.receive);
    MPI_Wait(&p.receive, MPI_STATUS_IGNORE);
  }
}

void Heartbeat::run() {
  double next = now();
  while (!stop_) {
    if (now() >= next) {
      next = now() + kEvery;
      beat();
      if (!stop_) look();
    }
    rest();
  }
}

// Until the next beat, moving bytes meanwhile.
void Heartbeat::rest() {
  if (state_.on_their_way == 0) {
    std::unique_lock lock(state_.wake_mutex);
    state_.wake.wait_for(lock, std::chrono::milliseconds(50), [&] { return stop_ || state_.on_their_way > 0; });
    return;
  }
  if (const std::unique_lock lock(state_.mutex, std::try_to_lock); lock.owns_lock() && !state_.broken) {
    int any = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, kBeatTag, state_.beats, &any, MPI_STATUS_IGNORE);
  }
  std::this_thread::sleep_for(std::chrono::microseconds(200));
}

void Heartbeat::beat() {
  const std::lock_guard lock(state_.mutex);
  if (state_.broken) stop_ = true;
  if (stop_) return;
  for (Peer& p : peers_) {
    int done = 1;
    if (p.send != MPI_REQUEST_NULL) MPI_Test(&p.send, &done, MPI_STATUS_IGNORE);
    if (done) MPI_Isend(&p.sent, 1, MPI_INT, p.rank, kBeatTag, state_.beats, &p.send);
    for (int arrived = 1; arrived != 0;) {  // all that came since
      if (p.receive == MPI_REQUEST_NULL) MPI_Irecv(&p.received, 1, MPI_INT, p.rank, kBeatTag, state_.beats, &p.receive);
      MPI_Test(&p.receive, &arrived, MPI_STATUS_IGNORE);
      if (arrived) p.heard = now();
    }
  }
}

void Heartbeat::look() {
  const double t = now();
  // A process that was itself stopped for a while has heard nobody: that says nothing about the others.
  const bool slept = t - looked_ > 5 * kEvery;
  looked_ = t;
  for (Peer& p : peers_) {
    if (slept) p.heard = t;
    if (t - p.heard < p.patience || state_.lost >= 0) continue;
    state_.lost = p.rank;
    const std::lock_guard lock(state_.handler_mutex);
    if (state_.on_lost) state_.on_lost(state_.lost_line());
  }
}

}  // namespace dsmoe::parallel
