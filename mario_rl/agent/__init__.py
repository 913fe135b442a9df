"""The player's mind: network, value heads, acting, exploration. No processes, no learning."""
