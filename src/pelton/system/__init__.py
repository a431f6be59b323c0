"""Services of the operating system: whole files, temporary folders, locks, forks, and the cache directory."""
