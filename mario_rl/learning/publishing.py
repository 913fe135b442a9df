"""Publishing weights: the main loop takes a snapshot and goes on; a thread brings it to shared memory."""

import queue
import threading
from typing import Literal

import torch
from torch import Tensor, nn

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

    @property
    def snapshot(self) -> dict[str, Tensor]:
        """The weights last published, once they have arrived."""
        with self._snapshot_free:
            return self._snapshot

    def publish(self, num_updates: int) -> bool:
        """Start publishing the network as it is after so many updates; False when that was published already."""
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

    def republish(self, state: dict[str, Tensor]) -> None:
        """Bring back what an exact resume was acting with. Only before anything runs."""
        for name, tensor in state.items():
            self._snapshot[name].copy_(tensor)
        self._slots.publish(self._snapshot)

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
