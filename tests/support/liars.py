"""Nodes that lie: what changes their hellos and their replies on a `LocalGrid`."""

from __future__ import annotations

import json

import numpy as np

from fedfuse.flower.messages import read_order, write_arrays
from fedfuse.protocol.tasks import Gradient, Score, SendMoments, SendSufficientStatistics


def hello_with(name, /, **lies):
    """Change what one device says of itself; a value of None leaves the field out."""

    def forge(asked, answer):
        config = answer.content["config"]
        if "hello" in config:
            line = json.loads(config["hello"])
            if line["device"] == name:
                line = {key: value for key, value in (line | lies).items() if value is not None}
                config["hello"] = json.dumps(line)
        return answer

    return forge


def reply_with(device, change):
    """Change the values that one device (by its place) sends: ``change(task, values)`` returns others."""

    def forge(asked, answer):
        if "reply" in answer.content["config"]:
            order = read_order(asked).order
            if order.device == device and "values" in answer.content["arrays"]:
                values = answer.content["arrays"]["values"].numpy()
                lie = np.asarray(change(order.task, values), values.dtype)
                answer.content["arrays"] = write_arrays({"values": lie})
        return answer

    return forge


def times(factor, *kinds):
    """Multiply answers to tasks of these kinds (by default whatever sums up rows)."""
    chosen = kinds or (SendSufficientStatistics, SendMoments, Gradient)
    return lambda task, values: factor * values if isinstance(task, chosen) else values


def false_score(value):
    """Send this in place of every score."""
    return lambda task, values: np.full_like(values, value) if isinstance(task, Score) else values
