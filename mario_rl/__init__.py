"""Mario RL: collector processes play Super Mario Bros, one learner trains a Q-network on what they see."""

__version__ = "0.1.0"
