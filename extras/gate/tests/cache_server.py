"""A reader behind a server with a real block cache: hash chain, LRU blocks, counts of hits.

What it answers is what a reader finds in the text that the cache gives back, so a block that is
wrong shows in the answer. `CacheServer` is an OpenAI-compatible server on loopback; faults are
subclasses of `BlockCache`.
"""

import threading
import time
from collections import OrderedDict
from random import Random

from rulerkit.generation.tasks import read_answer
from rulerkit.generation.tokenizers import load_tokenizer
from tests.text_server import Handler, ReaderServer


class BlockCache:
    """A pool of blocks. `read` gives the ids that a model sees of a prompt: those of blocks that
    are known by their hash come from the pool, all others from the prompt."""

    def __init__(self, block=16, pool=4096, sightings=2, off=False):
        self.block, self.pool, self.off = block, pool, off
        self.sightings = sightings
        self.slots = OrderedDict()
        """Slot -> the ids that it holds, the least recently used one first."""
        self.known = {}
        """Hash of a prefix -> slot."""
        self.hash_of = {}
        """Slot -> the hash under which it is known."""
        self.seen = {}
        """Hash of a prefix -> how often it was asked."""
        self.hits = 0

    def key(self, parent, ids):
        return hash((parent, tuple(ids)))

    def keys(self, ids):
        parent, keys = "", []
        for start in range(0, len(ids) - self.block + 1, self.block):
            parent = self.key(parent, ids[start : start + self.block])
            keys.append(parent)
        return keys

    def read(self, ids):
        """The ids that the model sees, and how many of them come from the cache."""
        if self.off:
            return list(ids), 0
        keys = self.keys(ids)
        found = []
        # The last token is always computed.
        for key in keys[: (len(ids) - 1) // self.block]:
            if key not in self.known or self.seen.get(key, 0) < self.sightings - 1:
                break
            found.append(self.known[key])
        cached = len(found) * self.block
        self.hits += cached
        seen = [token for slot in found for token in self.slots[slot]]
        for slot in found:
            self.slots.move_to_end(slot)
        return [*self.from_pool(seen, ids, cached), *ids[cached:]], cached

    def from_pool(self, seen, ids, cached):
        """What is seen of the blocks in the pool; faults change it."""
        return seen

    def store(self, ids, side_by_side=1):
        """Keep the full blocks of a prompt and its answer; so many prompts were read at once."""
        if self.off:
            return
        for number, key in enumerate(self.keys(ids)):
            self.seen[key] = self.seen.get(key, 0) + 1
            if key in self.known:
                continue
            slot = self.free()
            block = list(ids[number * self.block : (number + 1) * self.block])
            self.slots[slot] = self.written(block, side_by_side)
            self.known[key] = slot
            self.hash_of[slot] = key

    def written(self, block, side_by_side):
        """What a slot holds after a block was written to it; faults change it."""
        return block

    def free(self):
        """A slot to write to: a new one, or that of the block that was not used for longest."""
        if len(self.slots) < self.pool:
            return len(self.slots)
        slot, _ = self.slots.popitem(last=False)
        self.forget(slot)
        return slot

    def forget(self, slot):
        self.known.pop(self.hash_of.pop(slot), None)

    def alone(self, seen, batch):
        """What is seen in a batch of other prompts; faults change it."""
        return seen


# --- faults ---------------------------------------------------------------------------------------


class HalfHashed(BlockCache):
    """hit: the hash leaves out the second half of each block, so another prompt's block matches."""

    def key(self, parent, ids):
        return hash((parent, tuple(ids[: len(ids) // 2])))


class Blurred(BlockCache):
    """hit: of what comes from the pool, a stretch is lost."""

    def from_pool(self, seen, ids, cached):
        third = len(seen) // 3
        return seen[:third] + [seen[0]] * third + seen[2 * third :] if seen else seen


class Border(BlockCache):
    """border: the last block of a hit that ends inside a prompt is read from its first half on."""

    def from_pool(self, seen, ids, cached):
        is_inside = 0 < cached < (len(ids) - 1) // self.block * self.block
        return seen[: -self.block // 2] if is_inside else seen


class StaysKnown(BlockCache):
    """eviction: a block that was overwritten is still known by its old hash."""

    def forget(self, slot):
        self.hash_of.pop(slot, None)


class AfterEviction(BlockCache):
    """eviction: once blocks were evicted, every prompt loses a stretch."""

    evicted = False

    def forget(self, slot):
        super().forget(slot)
        self.evicted = True

    def alone(self, seen, batch):
        half = len(seen) // 2
        return seen[:half] + seen[half + 200 :] if self.evicted else seen


class Neighbour(BlockCache):
    """batch: in a batch of four and more, the middle of a prompt is read from its neighbour."""

    def alone(self, seen, batch):
        others = [one for one in batch if one is not seen]
        if len(batch) < 4 or not others:
            return seen
        other, third = others[0], len(seen) // 3
        return seen[:third] + list(other[third : 2 * third]) + seen[2 * third :]


class Padded(BlockCache):
    """batch: a shorter prompt beside a longer one loses its beginning."""

    def alone(self, seen, batch):
        longest = max(map(len, batch), default=0)
        return seen[len(seen) // 4 :] if longest > len(seen) + 8 else seen


class Unwritten(BlockCache):
    """batch: blocks of four and more prompts at once are known, but never written: a later hit on
    them reads nothing."""

    def written(self, block, side_by_side):
        return block[:1] * len(block) if side_by_side >= 4 else block


class Turn(BlockCache):
    """turn: where the last answer comes from the pool, what stands before it is lost."""

    def from_pool(self, seen, ids, cached):
        text = load_tokenizer("builtin").decode(seen)
        if text.count("What are all") + text.count("What is the special") < 1:
            return seen
        is_turn = cached < len(ids) - self.block and "?" in text
        return seen[: len(seen) // 2] if is_turn else seen


class Long(BlockCache):
    """length: hits of more than half of the longest prompts are wrong."""

    limit = 1200

    def from_pool(self, seen, ids, cached):
        return seen[: len(seen) // 2] if cached > self.limit else seen


class Aligned(BlockCache):
    """border: a prompt that fills its last block exactly loses a stretch on a hit."""

    def from_pool(self, seen, ids, cached):
        return seen[: len(seen) // 2] if len(ids) % self.block == 0 else seen


FAULTS = {
    one.__name__: one
    for one in (
        HalfHashed,
        Blurred,
        Border,
        StaysKnown,
        AfterEviction,
        Neighbour,
        Padded,
        Unwritten,
        Turn,
        Long,
        Aligned,
    )
}


# --- the server -----------------------------------------------------------------------------------


class CacheHandler(Handler):
    """The addresses of the protocol, and /metrics."""

    def do_GET(self):  # noqa: N802 (the library's name)
        if self.path == "/metrics" and self.server.metrics:
            self.reply(200, {}, self.server.page())
        else:
            super().do_GET()


class CacheServer(ReaderServer):
    """Serves a `BlockCache`. `flips` is the share of answers of which one value is another one, or
    that are cut; `details` and `metrics` say whether hits are told."""

    def __init__(self, cache, flips=0.0, details=True, metrics=True, seed=0, gather=0.003):
        super().__init__(load_tokenizer("builtin"))
        self.RequestHandlerClass = CacheHandler
        self.cache, self.flips, self.details, self.metrics = cache, flips, details, metrics
        self.random, self.gather = Random(f"server {seed}"), gather
        self.batch, self.arrived, self.answered = [], 0, 0

    def read(self, body):
        """The whole text that a model would see, and its tokens."""
        if "messages" not in body:
            return super().read(body)
        text = "\n".join(message["content"] for message in body["messages"])
        return text, self.tokenizer.count(text)

    def answer(self, body):
        """As a server answers; a batch is all that arrived before the first one is answered."""
        with self.lock:
            self.arrived += 1
        text, _ = self.read(body)
        ids = self.tokenizer.encode(text).tolist()
        with self.lock:
            seen, cached = self.cache.read(ids)
            self.batch.append(seen)
        until = time.monotonic() + 1
        time.sleep(self.gather)
        # Where several came, no further one for a while: a busy machine starts threads late.
        number = 1
        while not len(self.batch) == self.arrived == number and time.monotonic() < until:
            number = self.arrived
            time.sleep(10 * self.gather)
        with self.lock:
            shown = self.tokenizer.decode(self.cache.alone(seen, list(self.batch)))
        answer = self.flipped(read_answer(shown) or "I do not know.")
        written = self.tokenizer.encode(answer).tolist()[: body["max_tokens"]]
        with self.lock:
            self.cache.store([*ids, *written], self.arrived)
            self.answered += 1
            if self.answered == self.arrived:
                self.batch, self.arrived, self.answered = [], 0, 0
        content = self.tokenizer.decode(written)
        choice = {"finish_reason": "stop"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": content}
        else:
            choice["text"] = content
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(written)}
        if self.details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {"model": "m", "choices": [choice], "usage": usage}

    def flipped(self, answer):
        if self.random.random() >= self.flips:
            return answer
        values = answer.split(", ")
        place = self.random.randrange(len(values))
        values[place] = str(self.random.randrange(10**6, 10**7))
        return ", ".join(values)

    def page(self):
        """/metrics."""
        cache = self.cache
        return (
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {float(cache.hits)}\n'
            f'vllm:cache_config_info{{block_size="{cache.block}",engine="0",'
            f'num_gpu_blocks="{cache.pool}"}} 1.0\n'
        )


def started(server):
    """The server, in a thread."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Address:
    """Pages of a `CacheServer` without HTTP."""

    def __init__(self, server):
        self.server = server

    def get(self, name, timeout=0):
        return (200, self.server.page()) if self.server.metrics else (404, "")


class Direct:
    """A model that asks a `CacheServer` without HTTP: a run takes a tenth of the time."""

    label, prompt_path, limit = "fake", "text", 10**9

    def __init__(self, server, form):
        self.server, self.prompt_format = server, form
        self.connection = self
        self.address = Address(server)

    def send(self, example, **fields):
        from rulerkit.inference.model import Answer

        body = {"prompt": example.prompt, "max_tokens": example.max_new_tokens, **fields}
        self.server.seen.append(body)
        reply = self.server.answer(body)
        usage = dict(reply["usage"])
        details = usage.pop("prompt_tokens_details", {})
        text = reply["choices"][0]["text"]
        return Answer(text, "stop", usage["completion_tokens"], usage | details)

    def too_long(self, length):
        return None if length <= self.limit else "too long"
