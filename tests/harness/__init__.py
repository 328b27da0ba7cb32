"""What several tests share.

Processes and ranks
    processes           programs and commands in processes that need not load torch again
    ranks               a function on n ranks, threads or processes that are kept; tiles compared with one device
    hosts               network namespaces as machines
    simulated_hydra     MPICH's launcher, simulated
    checks              what runs in those processes, room by room
    playing             the instructions of a schedule on simulated devices, without tensors

Plans
    teams               plans made of teams of ranks, for the runtime and the models
    plans               plans of every schedule and shape, for schedules and frontiers
    one_process         plans whose stages are all on one process, and an engine for them

Models
    plan_models         models of eight layers, for plans
    image_models        the zoo's image models in small
    transformers_small  the zoo's transformers in small
    peers               small models of Hugging Face's transformers, and ours with the same weights
    networks            residual networks and U-Nets of every kind
    model_zoo           Hugging Face's image models
    operators           the functions of torch and torch.nn.functional, with arguments to try

Data
    cifar               CIFAR's files, small, byte by byte as those published

The energy server
    serving             servers, requests, and ranks that play what they are told
    fuzzed_requests     requests that are wrong in every way
    browser             a headless browser

Pytest finds this package by `pythonpath` in pyproject.toml, and multiprocessing hands the path on to what it starts.
"""

import sys

COMMAND = [sys.executable, "-c", "import sys; from halocline.cli import main; sys.exit(main())"]
"""`halocline`, as a user starts it."""
