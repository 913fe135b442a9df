"""Publishing weights: the main loop takes a snapshot and goes on; a thread brings it to shared memory."""

import queue
import threading
from typing import Literal

import torch
from torch import nn

from mario_rl.channels.weight_slots import WeightSlots


class WeightPublisher:
    """Publishes a network when it has changed. Used by the main loop; owns one thread unless `inline`."""

    def __init__(self, slots: WeightSlots, network: nn.Module, *, inline: bool = False) -> None:
        self._slots = slots
        self._network = network
        device = next(network.parameters()).device
        self._pinned = device.type == "cuda"
        # Every publication passes through this one copy. Pinned, so that the GPU can write it while training goes on.
        self._snapshot = {
            name: torch.empty_like(tensor, device="cpu", pin_memory=self._pinned)
            for name, tensor in network.state_dict().items()
        }
        self._published_updates = -1
        self._requests: queue.SimpleQueue[torch.cuda.Event | Literal["cpu", "end"]] = queue.SimpleQueue()
        self._snapshot_free = threading.Semaphore(1)
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        if not inline:
            self._thread = threading.Thread(target=self._run, name="publishing", daemon=True)
            self._thread.start()

    def publish(self, num_updates: int) -> bool:
        """Start publishing the network as it is after these updates; False when that was published already."""
        if num_updates == self._published_updates:
            return False
        self._published_updates = num_updates
        self._snapshot_free.acquire()  # waits only while the thread still copies the publication before
        if self._error is not None:
            raise self._error
        for name, tensor in self._network.state_dict().items():
            self._snapshot[name].copy_(tensor, non_blocking=self._pinned)
        if self._thread is None:
            self._bring("cpu")
        elif self._pinned:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
            self._requests.put(copied)
        else:
            self._requests.put("cpu")
        return True

    def forget(self) -> None:
        """The count of updates was set back: the next publication is new, whatever its number."""
        self._published_updates = -1

    @property
    def version(self) -> int:
        """The newest complete publication; 0 before the first."""
        return self._slots.version

    def metrics(self) -> dict[str, float]:
        """How often weights were published."""
        return {"weights/version": self.version}

    def close(self) -> None:
        """Finish what was begun and stop the thread."""
        if self._thread is not None:
            self._requests.put("end")
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (request := self._requests.get()) != "end":
            try:
                self._bring(request)
            except BaseException as error:  # raised again in the main loop, at the next publication
                self._error = error

    def _bring(self, copied: "torch.cuda.Event | Literal['cpu', 'end']") -> None:
        """Move the snapshot to shared memory, once the GPU has filled it."""
        try:
            if not isinstance(copied, str):
                copied.synchronize()
            self._slots.publish(self._snapshot)
        finally:
            self._snapshot_free.release()
