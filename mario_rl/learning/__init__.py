"""The learner process: consolidation, sampling ahead, the update, and publishing weights."""
