"""Advice on machines: the catalog of devices, and tables of frameworks and routes of deployment."""
