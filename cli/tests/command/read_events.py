"""Prints every number of the event files in a folder, as TensorBoard's own reader sees them."""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [[s.step, s.value] for s in events.Scalars(tag)] for tag in tags}))
