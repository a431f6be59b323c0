"""What runs steps: one back end per kind of machine."""
