"""Settings of Mario RL: edit these for your hardware, then run `python mario_rl_optimized.py`.

The values are for a machine with a GPU. Where there is none, CPU_OVERRIDES at the end of this file wins over them, and
`--set NAME=VALUE` on the command line wins over both. The plan printed at the start shows which value won.
`python mario_rl_optimized.py --help` lists the command line; unknown names, types and ranges are checked before
anything starts.
"""

import os

# --- The game ---------------------------------------------------------------------------------------------------------
WORLD, STAGE = 1, 1  # which level: worlds 1-8, stages 1-4
LEVELS: list[tuple[int, int]] = []  # several at once instead, as in [(1, 1), (1, 2)]: every episode draws one
ACTIONS = "simple"  # "right_only" (5 actions), "simple" (7) or "complex" (12): fewer actions learn faster
EMULATOR = "fast"  # "fast" is ours, compiled at the first start; "nes_py" is what it was checked against, 50x slower
FRAME_SKIP = 4  # frames an action is held: 15 decisions a second are enough for Mario, and 4x cheaper than 60
NOOP_START_MAX_FRAMES = 30  # episodes start after 0-30 idle frames, or a greedy policy sees one single episode
NO_PROGRESS_DECISIONS = 150  # cut an episode after 10 s without getting further: standing at a pipe teaches little
PROGRESS = "map"  # what is rewarded: coming nearer to the flag on a "map" that a search draws first, or "x"
SEARCH_MINUTES = 5.0  # a level, at most; most flags are found within 20 s on two cores, and then it ends
FALLBACK_ACTIONS = "complex"  # taken where a search finds no way with ACTIONS (8-4's pipes need DOWN); the same: never
MAP_REWARD = 0.8  # for each cell (16 x 16 pixels) nearer to the flag: about what running earns by x
REWARD_SCALE = 1 / 15  # the raw reward is clipped to +-15 a frame: this puts a death at -1
FLAG_BONUS = 16.0  # for the flag: what running on for ever would be worth (0.8 a decision). Less, and it is avoided
PRACTICE_SHARE = 0.5  # of the episodes start shortly before a recent death, not at the level's start (fast emulator)
RESCUE_SHARE = 0.25  # of practice follows a way past the death that random play has found, where there is a map

# --- Collectors: processes that play ----------------------------------------------------------------------------------
NUM_PROCESSES = 4  # a collector plays some thousand decisions/s, or 100 to 200 with nes-py
ENVS_PER_PROCESS = 4  # emulators a collector: one policy call decides for all of them
CHUNK_DECISIONS = 32  # ticks a collector writes before it rings: 4 x 32 experiences = 0.9 MB at once
REP_Q_SIZE = 20_000  # 2 x this many experiences may wait in all rings together: 10,000 for each of 4 collectors
MAX_RESTARTS_PER_HOUR = 20  # collectors that die are started again, all together up to this; then the run ends, saved
HANG_SECONDS = 20.0  # a collector that gives no sign of life for longer is killed and started again
WHEN_RING_FULL = "wait"  # "wait" loses nothing; "drop" keeps the game going and counts what is lost

# --- Exploration ------------------------------------------------------------------------------------------------------
EPSILON_DECAY_DECISIONS = 25_000  # from 1 down to each emulator's own epsilon, linearly
EPSILON_LADDER_LOW = 0.01  # the calmest emulator plays nearly greedily ...
EPSILON_LADDER_HIGH = 0.2  # ... while the wildest still explores; the others lie between, in equal ratios
EXPLORE_RIGHT_PROBABILITY = 0.75  # share of random actions that hold "right": the flag is on the right
EXPLORE_STICKY_PROBABILITY = 0.1  # the last action is repeated instead of the best one, as in half of an evaluation
EXPLORE_MAX_HOLD = 8  # a random action is held for 1-8 decisions: a high jump needs its button for half a second ...
EXPLORE_SHORT_HOLD = 2  # ... but by every second emulator for 1-2 only: to swim, the button must be pressed again

# --- Replay -----------------------------------------------------------------------------------------------------------
BUFFER_SIZE = 50_000  # experiences; single frames are stored, so they take 353 MB, not 2.8 GB
EXPERIENCE_BATCH_SIZE = 1_000  # experiences a commit moves into replay, or what is there after half a second
WARMUP_EXPERIENCES = 10_000  # learning begins when replay holds these: earlier batches would repeat themselves
REPLAY_RATIO = 8.0  # experiences trained on for each one collected; the side that runs ahead waits. 0: neither waits
PRIORITIZED_REPLAY = True  # draw what was guessed wrong more often: most of what is played is known by heart
PRIORITY_EXPONENT = 0.6  # how strongly the error counts: 0 is uniform, 1 in proportion to it
PRIORITY_CORRECTION = 0.4  # how much less such samples count in the loss: 0 not at all, 1 makes up for all of it ...
PRIORITY_CORRECTION_DECISIONS = 400_000  # ... which is reached after these decisions

# --- Learning ---------------------------------------------------------------------------------------------------------
BATCH_SIZE = 512  # one forward and backward of this size is a micro-batch
GRADIENT_ACCUMULATION_STEPS = 4  # micro-batches an optimizer step: 4 x 512 = an effective batch of 2,048
TRAINING_WORKERS = 1  # more are as fast as one on two cores (docs/benchmarks.md, `locks`), with older gradients
TRAINING_STEPS_PER_SAMPLE = 4  # micro-batches drawn by one sample call; no experience is used twice because of it
LEARNING_RATE = 1e-3  # Adam's at the start ...
FINAL_LEARNING_RATE = 3e-5  # ... and after LEARNING_RATE_DECAY_DECISIONS: large steps learn fast, small ones hold still
LEARNING_RATE_DECAY_DECISIONS = 600_000  # in equal ratios
ADAM_EPSILON = 1e-5  # larger than torch's 1e-8: small second moments otherwise make huge steps
MAX_GRADIENT_NORM = 10.0  # clipping: one surprising death must not undo an hour
MAX_BAD_UPDATES = 20  # updates in a row that are not numbers; each is left out, and this many are too many ...
WHEN_UPDATES_FAIL = "roll_back"  # ... then: back to the last checkpoint with half the rate; or "stop"
GAMMA = 0.95  # looks about 20 decisions ahead, 1.3 s: with 0.9 a fall is over the horizon, and waiting never pays
N_STEP = 5  # rewards counted one by one before the network's own guess takes over
PICTURE_SHIFT = 2  # pixels: states are trained on shifted by up to these, or they are learned by heart
TARGET_UPDATE = "hard"  # "hard" copies every TARGET_UPDATE_INTERVAL updates; "soft" moves by TARGET_TAU at each one
TARGET_UPDATE_INTERVAL = 50  # updates: 50 x 2,048 samples, 12,800 decisions at REPLAY_RATIO 8
TARGET_TAU = 0.005  # soft: half of the way after 140 updates
WEIGHT_AVERAGING = 0.05  # what acts is an average over the last twentieth of all updates: steadier; 0 is off
NETWORK = "convolutions"  # what sees the pictures: a trunk of mario_rl/agent/network.py
NETWORK_CHANNELS = (32, 64, 64)  # filters of the three convolutions
HIDDEN_UNITS = 512  # units of each of the two streams (value, advantage) behind them
VALUE_HEAD = "histogram"  # a value is learned as a distribution: as a "histogram", or as its "quantiles"
VALUE_BINS = 105  # the histogram's bins, of 0.2 between -3 and 18, which follow from GAMMA; or number of quantiles

# --- Hardware ---------------------------------------------------------------------------------------------------------
DEVICE = "auto"  # "auto" takes a CUDA GPU where there is one; "cpu" or "cuda" insist
USE_AMP = True  # mixed precision: float16 on a GPU, bfloat16 on a CPU only where it measures faster
COMPILE = "auto"  # torch.compile: "auto" on a GPU with a compiler, "on" or "off" insist
LEARNER_THREADS = 0  # CPU threads of the learner; 0 gives it the cores that the collectors leave
USE_DATA_PARALLEL = False  # split each micro-batch over all GPUs; worth it from BATCH_SIZE 1024 up
CACHE_CLEAR_EPOCHS = 50  # epochs after which unused GPU memory is given back, never on the hot path; 0 never

# --- Weights to the collectors ----------------------------------------------------------------------------------------
MODEL_UPDATE_FREQUENCY = 5  # publish every 5 epochs: a fifth of the traffic of every epoch
PUBLISH_MAX_DECISIONS = 12_000  # but never play longer than this on old weights, however long the episodes get

# --- Evaluation: greedy episodes, in a process of its own -------------------------------------------------------------
EVALUATION_DECISIONS = 20_000  # evaluate the newest policy after each of these and keep the best in models/; 0 never
STOP_AT_CLEAR_RATE = 0.95  # a run without limits ends when a policy clears this share of starts (2: never) ...
STOP_AT_STICKY_CLEAR_RATE = 0.6  # ... and this share of 100 sticky episodes; and both again of others, unseen

# --- The run ----------------------------------------------------------------------------------------------------------
EPISODES_PER_EPOCH = 16  # finished episodes that make an epoch: one [MAIN] line, one row of metrics
MAX_EPOCHS = 5_000  # ends a run at the latest; --epochs, --minutes or --decisions end it earlier, learned or not
CHECKPOINT_EPOCHS = 25  # save after each of these, and always at the end
KEEP_CHECKPOINTS = 2  # older ones are removed once a newer one is safely on disk
CHECKPOINT_REPLAY = True  # save replay too, so that a resumed run learns on at once
REPLAY_SAVE_SECONDS = 5.0  # newest experiences first, until the time is over: Ctrl-C must end within 10 s
PROCESSOR_LOG_SECONDS = 5.0  # between two [PROCESSOR] lines
LOCK_WARN_MILLISECONDS = 10.0  # warn when threads wait longer than this for a lock on average ...
LOCK_WARN_RATIO = 0.5  # ... or for more than this share of the time they need it
SEED = 1  # everything random derives from it

# --- Without a GPU ----------------------------------------------------------------------------------------------------
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
# A core trains on some 1,200 samples/s: at REPLAY_RATIO 4 it wants 300 decisions/s, and one collector with the fast
# emulator plays enough for a dozen cores. With nes-py's 100 to 200 on a core, all of them should collect; this
# file does not see `--set EMULATOR=nes_py`, so add `--set NUM_PROCESSES=...` to that.
_COLLECTORS = min(_CORES, 16) if EMULATOR == "nes_py" else max(1, min(_CORES // 12, 8))

CPU_OVERRIDES = {
    "NETWORK_CHANNELS": (16, 32, 32),  # half of the filters: a core trains on more than twice as many samples/s
    "HIDDEN_UNITS": 256,  # half: with 1,568 features in front, this matrix is the larger part of the weights
    "BATCH_SIZE": 64,  # 128 would be 1.3 times as fast a sample, but fewer, larger updates learned less
    "BUFFER_SIZE": 200_000,  # 1.4 GB: what was mastered long ago stays in it longer
    "REPLAY_RATIO": 4.0,  # the learner is the limit: new experience teaches more than old one once more
    "TARGET_UPDATE_INTERVAL": 400,  # updates: 400 x 64 samples, 6,400 decisions
    "GRADIENT_ACCUMULATION_STEPS": 1,  # accumulation buys nothing where memory is not the limit
    "NUM_PROCESSES": _COLLECTORS,  # from the core count, above
    "ENVS_PER_PROCESS": 8,  # eight streams from few processes: more variety in replay, one policy call for all
    "CHUNK_DECISIONS": 16,  # 8 x 16 = 128 experiences: half a second of what two cores can learn from
    "REP_Q_SIZE": 2_048 * _COLLECTORS,  # 4,096 experiences (29 MB) a ring
    "EPISODES_PER_EPOCH": 4,  # with the two lines below: a publish at least every 3,000 decisions
    "MODEL_UPDATE_FREQUENCY": 2,  # 8 episodes: some 1,200 decisions of a beginner, 2,800 of one who clears the level
    # What is on its way (a commit, a chunk of each collector) comes on top, and all of it stays below 3,000.
    "PUBLISH_MAX_DECISIONS": 3_000 - 256 - 128 * _COLLECTORS,
    "EXPERIENCE_BATCH_SIZE": 256,  # half a second's worth would otherwise wait for the timer at every commit
    "WARMUP_EXPERIENCES": 1_000 * _COLLECTORS,  # the first loss comes while one still watches
}
