"""The server: models of a repository over the Open Inference Protocol and TensorFlow Serving's REST interface."""
