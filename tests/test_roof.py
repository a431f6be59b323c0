"""The roof of a CPU: what its kernels do in each turn of their loops."""

from __future__ import annotations

import re

from pelton.tuning import roof

# Of vpmaddubsw: VEX or EVEX, then opcode 04 of map 0F38.
MADDUBS = re.compile(rb"\xc4..\x04|\x62..[\x40\x48]\x04", re.DOTALL)


def test_products_of_bytes_are_made_in_every_turn():
    """They are the same in each chain, so that a compiler multiplies once, before the loop, if it may."""
    for isa in ("x86_64_v3", "x86_64_v4"):
        assert len(MADDUBS.findall(roof.bytes_code(isa))) >= roof.CHAINS
