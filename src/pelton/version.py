"""The version of Pelton."""

VERSION = "0.1.0"
