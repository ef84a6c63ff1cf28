// Checkpoints found by looking at folders. Links are no help: object stores, zip files and FAT lose them, and a copy that
// follows them turns them into folders.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "dsmoe/tensor.h"

namespace dsmoe::train {

std::string checkpoint_name(Index steps);                // "checkpoint-N"
Index steps_in_name(const std::filesystem::path& path);  // N of ".../checkpoint-N"; -1 for any other name

// The steps that trainer/step.json tells: the mark of a checkpoint that this program wrote. None for folders without it,
// those of other programs among them.
std::optional<Index> marked_steps(const std::filesystem::path& folder);

// A checkpoint, or the folder of a run: nothing else is to be written there.
bool is_part_of_run(const std::filesystem::path& folder);

// What keeps a run from being resumed from this folder: "" for a complete checkpoint.
std::string damage_of(const std::filesystem::path& folder);

bool same_file(const std::filesystem::path& a, const std::filesystem::path& b);    // regular files, byte by byte
bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b);  // all files in them and below

}  // namespace dsmoe::train
