// The processes that this one was started with, by mpirun or srun: found through the environment that those set. Without
// them, and without a build with MPI, a process is alone.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm.h"

namespace dsmoe::parallel {

// All processes of the job; self() for one that was started by itself, which touches no library at all. The first call
// brings the ranks together; where they run different programs, it and every later call throw. An Error that names the
// CMake option where the job has several processes and this build has no transport.
std::shared_ptr<Comm> world();
bool has_world();  // world() was called and has more than one rank
int world_rank();  // in it; 0 without one. Never throws

// Called, on a thread of its own, with one line when another rank is not heard of any more. It should tell the user and
// then abort_world(); without it the next wait for that rank throws.
void on_lost_rank(std::function<void(const std::string& line)> handler);

// At the end of a program: waits for all ranks and lets go of the transport. Nothing without a world.
void leave_world();
// Ends all ranks now, this one too. Returns where there is no world.
void abort_world(int status);

// Before the first work on a GPU, a call of all ranks: those of one machine take its devices in turn, and the devices of
// all ranks are linked (gpu_link.h). Nothing without a world.
void link_gpus_of_world();

// How many of them run on this machine; 1 where it is not known.
int ranks_on_this_machine();
int rank_on_this_machine();  // among them; 0 where it is not known
// Threads for each of them: what this process may use, but no more than its part of the machine's cores, or of the time
// that a control group's quota has for all of them.
int threads_per_rank(int usable);

// Whether the environment is that of one of several processes of a job, as Open MPI, MPICH and Slurm set it.
bool started_as_rank();

}  // namespace dsmoe::parallel
