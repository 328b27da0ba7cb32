"""The loop: from a model, data and a plan to a trained checkpoint, with its metrics.

Puts the other rooms together; holds nothing that one of them could hold.
"""
