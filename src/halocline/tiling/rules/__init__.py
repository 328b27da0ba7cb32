"""The operator rules, one file per family: importing this package imports every file in it and so registers them."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
