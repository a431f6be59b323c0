"""The explorer: an engine as one HTML page with its graph, times, memory and roofline (`pelton view`)."""
