"""The precision search: layers in INT8 by calibration, halves, and the fastest of them within an accuracy bound."""
