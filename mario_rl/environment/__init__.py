"""The task: game rules per frame, episodes, rewards and actions. No processes, no learning."""
