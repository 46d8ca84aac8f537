"""Plans, builds, runs, resumes and evaluates experiments. The command line and the Python API both call it."""
