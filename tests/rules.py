"""Rules of the parts for tests that need no whole run; `dataclasses.replace` changes what a test is about."""

from dataclasses import fields, replace

from mario_rl.agent.exploration import ExplorationRules
from mario_rl.collecting.rules import CollectingRules
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.learning.rules import LearningRules
from mario_rl.replay.prioritized import PriorityRules
from mario_rl.replay.sampler import SamplingRules

PLAY = PlayRules(actions="simple", emulator="fast", frame_skip=4, no_progress_decisions=20)
TASK = TaskRules(
    world=1,
    stage=1,
    levels=(),
    progress="x",
    map_reward=0.8,
    noop_start_max_frames=0,
    reward_scale=0.5,
    flag_bonus=3.0,
    practice_share=0.0,
    rescue_share=0.0,
)
COLLECTING = CollectingRules(
    num_processes=1,
    envs_per_process=2,
    chunk_decisions=8,
    rep_q_size=32,  # four chunks a ring
    when_ring_full="wait",
    experience_batch_size=20,
    max_restarts_per_hour=0,
    hang_seconds=60.0,
    processor_log_seconds=1e6,
)
EXPLORATION = ExplorationRules(
    epsilon_decay_decisions=100,
    epsilon_ladder_low=1.0,
    epsilon_ladder_high=1.0,
    explore_right_probability=0.75,
    explore_sticky_probability=0.0,
    explore_max_hold=4,
    explore_short_hold=2,
)
LEARNING = LearningRules(
    batch_size=8,
    gradient_accumulation_steps=1,
    training_steps_per_sample=1,
    learning_rate=1e-3,
    final_learning_rate=1e-4,
    learning_rate_decay_decisions=1_000,
    weight_averaging=0.1,
    adam_epsilon=1e-5,
    max_gradient_norm=10.0,
    target_update="hard",
    target_update_interval=3,
    target_tau=0.1,
)
SAMPLING = SamplingRules(gamma=0.9, n_step=3, picture_shift=0)
PRIORITIES = PriorityRules(
    prioritized_replay=True, priority_exponent=0.6, priority_correction=0.4, priority_correction_decisions=1_000
)


def game_rules(**changes):
    """The rules that `Episodes` needs, with some changed."""
    own = {field.name for field in fields(PLAY)}
    play = replace(PLAY, **{name: value for name, value in changes.items() if name in own})
    return play, replace(TASK, **{name: value for name, value in changes.items() if name not in own})
