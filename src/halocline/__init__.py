"""Halocline trains images and models too large for one GPU, exactly. This file is the public surface, loaded lazily."""
