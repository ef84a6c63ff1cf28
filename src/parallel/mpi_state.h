// What all groups of ranks share in a build with MPI. MPI is called by one thread at a time (MPI_THREAD_SERIALIZED): the
// one that computes and the one that keeps watch take turns, and nobody stays inside MPI to wait.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/gpu_link.h"

namespace dsmoe::parallel {

struct MpiState {
  std::timed_mutex mutex;  // held during every call of MPI
  MPI_Comm data = MPI_COMM_NULL, beats = MPI_COMM_NULL;
  int rank = 0, size = 1;
  bool initialized_here = false;
  int next_tag = 1;                 // of groups
  double waited = 0;                // seconds, by the thread that computes
  std::vector<std::string> places;  // of each rank: "process 123 on HOST"
  std::shared_ptr<GpuLink> gpus;    // null: their bytes go by the memory of the machines

  // Messages were given up on their way, and their memory may be gone: MPI is not called to move bytes any more, not even
  // by the heartbeat, so this rank is silent from then on and the others end. Under the mutex.
  bool broken = false;

  // Messages that nobody waits for yet. MPI moves bytes when it is called, so the heartbeat's thread calls it meanwhile.
  std::atomic<int> on_their_way = 0;
  std::mutex wake_mutex;
  std::condition_variable wake;

  std::atomic<int> lost = -1;  // a rank that is not heard of any more
  std::mutex handler_mutex;
  std::function<void(const std::string&)> on_lost;

  std::string lost_line() const;  // what to tell the user
};

// Ranks tell each other once a second that they are alive: all tell rank 0, and rank 0 tells all. A rank that is killed is
// usually noticed by mpirun first; one that is stopped, or whose machine or network is gone, only here. A rank whose
// computing thread hangs is not noticed: its heartbeat goes on.
class Heartbeat {
 public:
  explicit Heartbeat(MpiState& state);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  struct Peer {
    int rank;
    double heard, patience;  // seconds
    int sent = 0, received = 0;
    MPI_Request send = MPI_REQUEST_NULL, receive = MPI_REQUEST_NULL;
  };
  void run();
  void rest();
  void beat();
  void look();

  MpiState& state_;
  std::vector<Peer> peers_;
  double looked_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace dsmoe::parallel
