"""The parts that the main loop works with, connected by `app/wiring.py`."""

from dataclasses import dataclass

from mario_rl.accounts.flow import FlowControl
from mario_rl.accounts.ledger import Ledger
from mario_rl.collecting.source import ExperienceSource
from mario_rl.evaluation.evaluator import Evaluator
from mario_rl.learning.learner import Learner
from mario_rl.learning.publishing import WeightPublisher
from mario_rl.learning.trainers import Trainer
from mario_rl.training.progress import Progress
from mario_rl.training.recovery import Recovery
from mario_rl.training.reporting import Reporter
from mario_rl.training.saving import RunSaver


@dataclass
class Pipeline:
    """Everything of a run that is not on disk."""

    source: ExperienceSource
    learner: Learner
    trainer: Trainer
    publisher: WeightPublisher
    evaluator: Evaluator
    ledger: Ledger
    flow: FlowControl
    progress: Progress
    recovery: Recovery
    saver: RunSaver
    reporter: Reporter

    def start(self) -> None:
        """Start all processes and threads."""
        self.evaluator.start()
        self.source.start()

    def stop(self) -> None:
        """Stop all processes and threads; safe to call once, in any state."""
        self.evaluator.stop()
        self.source.stop()
        self.trainer.close()
        self.publisher.close()

    def kill(self) -> None:
        """End all processes at once."""
        self.evaluator.kill()
        self.source.kill()
