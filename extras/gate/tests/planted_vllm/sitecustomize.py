"""Plants a fault into vLLM as it is imported: RULERKIT_FAULT is half_hashed or stays_known."""

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder


def half_hashed(module):
    """The hash of a block leaves out its second half."""
    whole = module.hash_block_tokens

    def of_half(function, parent, ids, extra=None):
        return whole(function, parent, list(ids)[: len(ids) // 2], extra)

    module.hash_block_tokens = of_half


def stays_known(module):
    """A block that is overwritten is still known by its old hash."""

    def forget(self, block):
        block.reset_hash()
        return False

    module.BlockPool._maybe_evict_cached_block = forget


FAULTS = {
    "half_hashed": ("vllm.v1.core.kv_cache_utils", half_hashed),
    "stays_known": ("vllm.v1.core.block_pool", stays_known),
}


class Planted(Loader):
    """Runs a module, then plants the fault."""

    def __init__(self, loader, plant):
        self.loader, self.plant = loader, plant

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.plant(module)


class Finder(MetaPathFinder):
    """Finds the one module that is changed."""

    def find_spec(self, name, path, target=None):
        wanted, plant = FAULTS[os.environ["RULERKIT_FAULT"]]
        if name != wanted:
            return None
        spec = PathFinder.find_spec(name, path)
        spec.loader = Planted(spec.loader, plant)
        return spec


if os.environ.get("RULERKIT_FAULT") in FAULTS:
    sys.meta_path.insert(0, Finder())
