"""TFLite models that Pelton writes, run by LiteRT."""
