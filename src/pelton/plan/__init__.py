"""From a graph to steps: regions, layouts, views, waves, memory."""
