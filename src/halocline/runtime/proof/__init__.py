"""The proof by running: a plan against one device, and where one device itself is wrong."""
