"""What is trained on: synthetic images, CIFAR-10, image folders and whole slides, read box by box.

Knows files, pixels and samples; nothing of ranks or models.
"""
