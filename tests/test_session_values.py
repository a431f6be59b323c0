"""Valid values of session options, as in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from test_session import network

import pelton as ort


@pytest.mark.parametrize("severity", [-2, 5, 9])
def test_severities_that_there_are_not(severity):
    given = ort.SessionOptions()
    given.log_severity_level = severity
    with pytest.raises(ort.InputError, match=f"log_severity_level is a number from 0 .* got {severity}"):
        ort.InferenceSession(network(2).SerializeToString(), given)


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("intra_op_num_threads", "x", "an integer"),
        ("inter_op_num_threads", 1.5, "an integer"),
        ("log_severity_level", None, "an integer"),
        ("graph_optimization_level", 99, "of GraphOptimizationLevel, such as GraphOptimizationLevel.ORT_ENABLE_ALL"),
        ("execution_mode", True, "of ExecutionMode, such as ExecutionMode.ORT_SEQUENTIAL"),
        ("enable_profiling", "1", "True or False"),
        ("logid", 3, "a text"),
    ],
)
def test_values_that_are_not_of_the_type_of_an_option(name, value, expected):
    """As with ONNX Runtime: a TypeError where it is set, and the option stays as it is."""
    given = ort.SessionOptions()
    before = getattr(given, name)
    with pytest.raises(TypeError, match=f"{name} is {expected}, got {value!r}"):
        setattr(given, name, value)
    assert getattr(given, name) is before
    with pytest.raises(TypeError, match="terminate is True or False, got 'no'"):
        ort.RunOptions().terminate = "no"
    with pytest.raises(AttributeError):
        given.no_option = 1


def test_values_that_mean_the_same_as_those_of_the_type():
    given = ort.SessionOptions()
    given.intra_op_num_threads, given.enable_profiling = np.int64(2), 0
    assert type(given.intra_op_num_threads) is int and given.enable_profiling is False
    assert given.read({}).options.threads == 2
    given.intra_op_num_threads = -1  # the default
    assert given.read({}).options.threads is None
