import errno
import json

import pytest
import torch
from safetensors.torch import save_file

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.observation import OBSERVATION
from mario_rl.storage import policies
from mario_rl.storage.policies import FORMAT, Policy, PolicyError, export_policy, load_policy, read_policy

SHAPE = NetworkShape((4, 6, 8), 10, 7)
CARD = {"run": "mario-1-2-x", "decisions": 1_234}
METADATA = {
    "format": FORMAT,
    "observation": OBSERVATION,
    "levels": "1-2 2-1",
    "actions": "simple",
    "frame_skip": "4",
    "shape": json.dumps(SHAPE._asdict()),
}


def _policy(weights):
    return Policy(weights, SHAPE, "simple", 4, (Level(1, 2), Level(2, 1)))


@pytest.fixture
def network():
    torch.manual_seed(3)
    network = QNetwork(SHAPE)
    network(torch.rand(2, 4, 84, 84))  # running statistics that differ from fresh ones
    return network


@pytest.fixture
def model(tmp_path, network):
    path = tmp_path / "models" / "mario-newest.safetensors"
    export_policy(path, _policy(network.state_dict()), CARD)
    return path


def refusal(path, shape=SHAPE, actions="simple"):
    with pytest.raises(PolicyError) as caught:
        load_policy(path, shape, actions)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")
    return message


def test_an_exported_policy_comes_back_and_plays_the_same(model, network):
    state = load_policy(model, SHAPE, "simple")
    for name, tensor in network.state_dict().items():
        assert torch.equal(state[name], tensor), name  # BatchNorm's statistics too
    other = QNetwork(SHAPE)
    other.load_state_dict(state)
    pictures = torch.rand(3, 4, 84, 84)
    assert torch.equal(other.eval()(pictures), network.eval()(pictures))
    policy = read_policy(model)
    assert policy._replace(weights={}) == _policy({})
    assert torch.equal(policy.network()(pictures), network(pictures))


def test_the_card_beside_the_weights_is_json_with_what_was_trained_and_how(model):
    card = json.loads(model.with_suffix(".json").read_text())
    assert card.items() >= CARD.items()
    assert (card["format"], card["actions"]) == (FORMAT, "simple")
    assert json.loads(card["shape"]) == SHAPE._asdict() | {"channels": [4, 6, 8]}


def test_an_export_replaces_the_older_one_and_leaves_nothing_else_behind(model, network):
    with torch.no_grad():
        network.value.bias.fill_(5.0)
    export_policy(model, _policy(network.state_dict()), CARD | {"decisions": 2})
    assert load_policy(model, SHAPE, "simple")["value.bias"].unique().tolist() == [5.0]
    assert json.loads(model.with_suffix(".json").read_text())["decisions"] == 2
    assert sorted(path.name for path in model.parent.iterdir()) == [
        "mario-newest.json",
        "mario-newest.safetensors",
    ]


def test_the_weights_load_without_the_card(model):
    model.with_suffix(".json").unlink()
    assert load_policy(model, SHAPE, "simple")


@pytest.mark.parametrize("shape", [SHAPE._replace(channels=(4, 6, 9)), SHAPE._replace(hidden_units=11)])
def test_a_network_of_another_shape_is_refused_with_both_shapes(model, shape):
    message = refusal(model, shape)
    assert json.dumps(SHAPE._asdict()) in message
    assert json.dumps(shape._asdict()) in message
    assert "set NETWORK, NETWORK_CHANNELS, HIDDEN_UNITS, VALUE_HEAD, VALUE_BINS and GAMMA to what" in message


def test_another_action_set_is_refused_with_the_remedy(model):
    message = refusal(model, SHAPE._replace(num_actions=12), "complex")
    assert "ACTIONS = 'simple', this run has 'complex'" in message
    assert "--set ACTIONS=simple" in message


def test_a_missing_model_is_refused(tmp_path):
    assert "There is no model" in refusal(tmp_path / "nowhere.safetensors")
    assert "There is no model" in refusal(tmp_path)  # a folder


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}/model.safetensors", "x/" * 3_000])
def test_a_name_that_is_too_long_is_refused(tmp_path, name):
    assert "cannot be read (File name too long)" in refusal(tmp_path / name)


def test_a_model_in_a_folder_that_is_closed_to_us_is_refused(model, monkeypatch):
    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(model), "is_file", closed)  # the machine's administrator may look everywhere
    assert "cannot be read (Permission denied)" in refusal(model)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate")])
def test_a_model_that_does_not_fit_into_memory_is_refused(model, monkeypatch, error):
    def too_large(*_):
        raise error

    monkeypatch.setattr(policies, "safe_open", too_large)
    assert "does not fit into memory" in refusal(model)


@pytest.mark.parametrize(
    "shape",
    [
        "[" * 100_000,
        json.dumps(SHAPE._asdict()).replace(str(SHAPE.value_low), "-" + "9" * 400),
        json.dumps(SHAPE._asdict() | {"hidden_units": 10**400}),
    ],
    ids=["nested", "long", "large"],
)
def test_a_shape_of_monstrous_numbers_or_lists_is_refused(tmp_path, network, shape):
    path = tmp_path / "model.safetensors"
    save_file(
        {name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path, METADATA | {"shape": shape}
    )
    assert "does not tell what it was trained for" in refusal(path)


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"This is a letter to my aunt.\n" * 50, b"\x02" + b"\x00" * 7 + b"{}x"]
)
def test_a_file_that_is_no_safetensors_file_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    message = refusal(path)
    assert "is no model file" in message
    assert "give a .safetensors file, as in models/" in message


def test_a_pickle_is_refused(tmp_path, network):
    path = tmp_path / "model.pt"
    torch.save(network.state_dict(), path)
    assert "is no model file" in refusal(path)


def test_a_model_that_was_cut_short_is_refused(model):
    model.write_bytes(model.read_bytes()[:-100])
    assert "is no model file" in refusal(model)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_a_safetensors_file_from_elsewhere_is_refused(tmp_path, network, metadata):
    path = tmp_path / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path, metadata)
    assert "was not exported by this project" in refusal(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": "mario-rl-policy-1"}, "another version of this project (mario-rl-policy-1, this one reads"),
        ({"observation": "sounds"}, "other observations (sounds)"),
        ({"observation": OBSERVATION + " twice"}, "other observations"),
    ],
)
def test_a_model_of_other_observations_is_refused(tmp_path, network, change, reason):
    path = tmp_path / "model.safetensors"
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, path, METADATA | change)
    assert reason in refusal(path)


LARGE = json.dumps(SHAPE._replace(hidden_units=10**9)._asdict())
ENDLESS = json.dumps(SHAPE._replace(value_high=float("inf"))._asdict())
BACKWARDS = json.dumps(SHAPE._replace(value_low=5.0, value_high=4.0)._asdict())


@pytest.mark.parametrize(
    "change",
    [{"shape": shape} for shape in ("{", "[]", "{}", "7", json.dumps({"channels": 3}), LARGE, ENDLESS, BACKWARDS)]
    + [
        {"actions": "dance"},
        {"actions": "complex"},
        {"levels": "one"},
        {"levels": "1-2-3"},
        {"levels": ""},
        {"levels": "9-1"},
        {"frame_skip": "0"},
    ],
)
def test_a_model_whose_metadata_makes_no_sense_is_refused(tmp_path, network, change):
    path = tmp_path / "model.safetensors"
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, path, METADATA | change)
    message = refusal(path)
    assert "does not tell what it was trained for" in message


def test_a_model_whose_metadata_lies_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(1)}, path, METADATA)
    assert "does not hold the network that it claims to" in refusal(path)


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    state = QNetwork(SHAPE).state_dict()
    state["value.bias"] += torch.nan
    export_policy(path, _policy(state), {})
    assert "not numbers" in refusal(path)
