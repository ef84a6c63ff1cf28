// A command that many processes run together, under mpirun or srun: rank 0 speaks, and when one rank fails all end.
#pragma once

#include <functional>
#include <string>

namespace dsmoe::cli {

// Before anything is computed or printed. Nothing for a process that was started by itself. True when there are others.
bool join_ranks();

// For commands that compute the same on every rank, with experts spread over them: all must have the same arguments.
// `threads`: 0 becomes this rank's part of the machine.
bool join_ranks_with_same_arguments(int& threads);
bool is_first_rank();                                                      // the one that writes files
bool any_rank(bool mine);                                                  // true on all if on one
std::string text_of_first_rank(const std::function<std::string()>& read);  // only it has standard input

// At the end of the program, with the exit status of the command.
void leave_ranks(int status);

// After an error: says it, with the rank, and ends all. Returns where there are no others.
void end_ranks(const std::string& message, int status);

}  // namespace dsmoe::cli
