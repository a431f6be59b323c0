"""Engines on emulated Cortex-M boards: MLPerf Tiny's networks, measured beside TensorFlow Lite Micro."""
