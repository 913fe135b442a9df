import itertools
import os
import random
import signal
import threading
import time

import torch
from torch import nn

from mario_rl.channels.weight_slots import WeightSlots
from tests.channels import (
    PATIENCE_SECONDS,
    child,
    context,
    mapped_shared_memory,
    needs_shared_memory_folder,
    receive,
    shared_memory_names,
)

NUM_INTERRUPTIONS = 30


def network_with_statistics():
    network = nn.Sequential(nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 5))
    network(torch.randn(4, 1, 5, 5) * 3 + 2)
    return network


def bits(state):
    """Dtype, shape and bytes of every tensor: equal only if nothing was rounded, converted or reordered."""
    return {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.numpy(force=True).tobytes())
        for name, tensor in state.items()
    }


def filled_state(value, num_floats=800_000):
    """13 MB of the same number: a copy takes milliseconds, and any mixture of two versions shows."""
    return {
        "first": torch.full((num_floats,), float(value)),
        "count": torch.tensor(value, dtype=torch.int64),
        "last": torch.full((3, num_floats), float(value)),
    }


def values_in(state):
    return {value for tensor in state.values() for value in (int(tensor.min()), int(tensor.max()))}


def take_into_a_network(slots, told):
    torch.set_num_threads(1)
    network = network_with_statistics().eval()
    version = slots.take(network.state_dict(), 0)
    told.send((version, bits(network.state_dict())))


def take_when_told(slots, told):
    """Take as often as told, then tell every version and the states that were wrong."""
    torch.set_num_threads(1)
    state, versions, wrong = filled_state(0), [0], []
    told.send("started")
    while told.recv() == "take":
        versions.append(slots.take(state, versions[-1]))
        if values_in(state) != {versions[-1]}:
            wrong.append((versions[-1], values_in(state)))
        told.send("took")
    told.send((versions, wrong))


def test_parameters_and_batchnorm_statistics_arrive_bit_for_bit_in_a_child():
    published = network_with_statistics().state_dict()
    published["1.num_batches_tracked"].fill_(2**53 + 1)  # would not survive a float
    published["1.running_var"][0] = 1e-40  # denormal
    published["0.weight"][0, 0, 0, 0] = -0.0
    slots = WeightSlots(context, network_with_statistics().state_dict())
    slots.publish(published)
    ours, theirs = context.Pipe()
    with ours, theirs, child(take_into_a_network, slots, theirs):
        version, received = receive(ours)
    assert version == 1
    assert received == bits(published)


def test_nothing_is_copied_before_anything_was_published():
    slots = WeightSlots(context, filled_state(0, 10))
    mine = filled_state(9, 10)
    assert slots.take(mine, known_version=0) == 0
    assert values_in(mine) == {9}


def test_nothing_is_copied_while_the_known_version_is_the_newest():
    slots = WeightSlots(context, filled_state(0, 10))
    for version in (1, 2, 3):
        assert slots.publish(filled_state(version, 10)) == version
        mine = filled_state(9, 10)
        assert slots.take(mine, known_version=version) == version
        assert values_in(mine) == {9}


def test_a_subscriber_that_missed_versions_takes_the_newest():
    slots = WeightSlots(context, filled_state(0, 10))
    mine = filled_state(0, 10)
    held = 0
    for newest in (1, 2, 5, 7, 8):
        while slots.version < newest:
            slots.publish(filled_state(slots.version + 1, 10))
        held = slots.take(mine, held)
        assert held == newest
        assert values_in(mine) == {newest}


def test_what_was_taken_does_not_change_with_later_versions():
    slots = WeightSlots(context, filled_state(0, 10))
    published, mine = filled_state(1, 10), filled_state(0, 10)
    slots.publish(published)
    published["first"].fill_(77)  # training goes on in the publisher's own memory
    slots.take(mine, known_version=0)
    for version in (2, 3, 4):
        slots.publish(filled_state(version, 10))
    assert values_in(mine) == {1}


def test_a_continual_publisher_never_gives_a_torn_or_older_state():
    slots = WeightSlots(context, filled_state(0))
    states = map(filled_state, itertools.count(1))
    chance = random.Random(0)
    ours, theirs = context.Pipe()
    with ours, theirs, child(take_when_told, slots, theirs) as process:
        assert receive(ours) == "started"
        for _ in range(NUM_INTERRUPTIONS):
            slots.publish(next(states))
            following = [next(states) for _ in range(2)]
            ours.send("take")
            # Stop the reader somewhere, often in the middle of its copy, and overwrite both slots meanwhile.
            time.sleep(chance.uniform(0, 0.004))
            os.kill(process.pid, signal.SIGSTOP)
            for state in following:
                slots.publish(state)
            os.kill(process.pid, signal.SIGCONT)
            assert receive(ours) == "took"
        ours.send("end")
        versions, wrong = receive(ours)
    assert wrong == []
    assert versions == sorted(set(versions))


def test_a_copy_whose_checksum_disagrees_is_not_accepted():
    slots = WeightSlots(context, filled_state(0, 10))
    slots.publish(filled_state(1, 10))
    slots._bytes.array[1, :4] ^= 0x55  # as on a machine where the version becomes visible before the data
    mine, held = filled_state(0, 10), []
    thread = threading.Thread(target=lambda: held.append(slots.take(mine, 0)), daemon=True)
    thread.start()
    thread.join(0.05)
    assert held == []
    slots.publish(filled_state(2, 10))
    thread.join(PATIENCE_SECONDS)
    assert held == [2]
    assert values_in(mine) == {2}


@needs_shared_memory_folder
def test_weight_slots_have_no_name():
    before = shared_memory_names()
    slots = WeightSlots(context, filled_state(0, 10))
    slots.publish(filled_state(1, 10))
    assert shared_memory_names() - before == set()
    assert mapped_shared_memory(os.getpid())
    assert all(path.endswith("(deleted)") for path in mapped_shared_memory(os.getpid()))
