"""Where answers of `pelton serve` differ from a Triton server's, and why."""

from __future__ import annotations

import re

# paths of values that may differ
FREE = re.compile(r"(\.ns|_ns|\.last_inference|^\.version|^\.extensions|^\.platform)$")
STATES = "repository, statistics, settings, memory"


def _of(group: str, names: str) -> list[str]:
    """Returns the keys of requests of a group, whose names are in lines, with semicolons between."""
    return [f"{group}: {' '.join(name.split())}" for name in names.split(";")]


REASONS: dict[str, list[str]] = {
    "A request that is not as the protocol says is the client's fault": [
        *_of(
            "bad requests in JSON",
            """
            no JSON; a list; a number; null; empty object; inputs are no list; no name; no shape; no datatype;
            name is a number; shape is a text; shape of a text; negative size; size with a fraction; a value too
            few; a value too many; data is a number; data is a text; a text among numbers; null among numbers;
            true among numbers; a fraction for whole numbers; a negative number without a sign; a number for a
            truth value; a number for a text; outputs are no list; an output without a name; identifier is a
            number; parameters are a list""",
        ),
        *_of("bad binary tensors", "size is a text; size is negative; length is too small"),
        *_of("classification", "a negative number; a text"),
        *_of(STATES, "index, no JSON; register an absent file; log settings, no truth value"),
        *_of("gRPC: " + STATES, "register an absent file"),
    ],
    "Health has a body, as KServe's version of the protocol says": _of(
        "health and metadata", "live; ready; model ready; version ready"
    ),
    "An engine's configuration names no instances and files": [
        *_of("health and metadata", "config; config of a version"),
        *_of("gRPC: health and metadata", "config"),
    ],
    "The root is the server's page, /v2/ is the same as /v2, and HEAD is answered as GET": _of(
        "health and metadata", "root; slash behind; HEAD of the server"
    ),
    "Nothing is found where POST alone has an answer": _of("health and metadata", "GET infer"),
    "Outputs come in the order in which they are asked for; the program's order is its own": [
        *_of("requests in JSON", "outputs in another order"),
        *_of("gRPC: requests", "outputs in another order"),
    ],
    "An output that is asked for twice is rejected, as later versions of Triton do": [
        *_of("requests in JSON", "an output twice"),
        *_of("gRPC: bad requests", "an output twice"),
    ],
    "An engine is built for a range of sizes, which begins at 1": [
        *_of("requests in JSON", "no columns"),
        *_of("binary tensors", "no bytes"),
        *_of("gRPC: requests", "no columns"),
    ],
    "FP16 is read from JSON": _of("bad requests in JSON", "FP16 in JSON"),
    "max_batch_size bounds the batches that the server forms; a larger request runs by itself": [
        *_of("bad requests in JSON", "too many rows"),
        *_of("gRPC: bad requests", "too many rows"),
    ],
    "A number that its type cannot hold is rejected, and not cut off": [
        *_of("bad requests in JSON", "a number out of range"),
        *_of("gRPC: bad requests", "a number out of range"),
    ],
    "Bytes that no input takes are an error": _of("gRPC: bad requests", "raw data too many"),
    "The size of shared memory is looked at before its name": _of("bad requests in JSON", "region without a size"),
    "An unknown compression is 415, as HTTP has it": _of("bad requests in JSON", "unknown compression"),
    "Rejected requests count as failures, and accepted ones differ as above": [
        *_of(STATES, "statistics; statistics of a model; statistics of a version"),
        *_of("gRPC: " + STATES, "statistics of a model"),
    ],
    "What is absent is not found": [
        *_of(STATES, "statistics of an absent model"),
        *_of("gRPC: " + STATES, "statistics of an absent model"),
    ],
    "The log begins with warnings": [*_of(STATES, "log settings"), *_of("gRPC: " + STATES, "log settings")],
    "Settings that have no effect are rejected": [
        *_of(STATES, "log settings, unknown; trace settings, unknown"),
        *_of("gRPC: " + STATES, "log settings, unknown"),
    ],
}
KNOWN = {key: reason for reason, keys in REASONS.items() for key in keys}
