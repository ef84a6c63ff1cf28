#!/usr/bin/env python3
"""Reads event files with TensorBoard itself. Run by event_file_test.cpp.

  check_with_tensorboard.py FOLDER   prints "TAG STEP VALUE" for every scalar

Exit status: 0 right, 1 wrong, 77 the package tensorboard is not installed.
"""
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"not installed: {error}", file=sys.stderr)
    sys.exit(77)

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
for tag in sorted(events.Tags()["scalars"]):
    for event in events.Scalars(tag):
        print(tag, event.step, f"{event.value:.3f}")
